// The search of the decision records: shows those whose text has all words. `RECORDS` is in record_texts.js.
document.addEventListener("DOMContentLoaded", () => {
  const field = document.querySelector(".record-search");
  if (!field || typeof RECORDS === "undefined") return;
  const items = [...document.querySelectorAll("li.toctree-l1")].filter((item) => item.closest("article"));
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items) {
      const link = item.querySelector("a");
      const name = link.getAttribute("href").replace(/\.html.*$/, "");
      const text = (RECORDS[name] || "") + " " + link.textContent.toLowerCase();
      item.style.display = words.every((word) => text.includes(word)) ? "" : "none";
    }
  });
});

// Draws the formulas of a page with KaTeX, which lies beside this file: no network is needed.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll("span.math, div.math")) {
    const number = element.querySelector(".eqno");
    if (number) number.remove();
    const text = element.textContent.trim();
    const formula = text.replace(/^\\[(\[]/, "").replace(/\\[)\]]$/, "");
    katex.render(formula, element, { displayMode: element.tagName === "DIV", throwOnError: false });
    if (number) element.prepend(number);
  }
});

"""Reports read back, and what must hold of every one."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
from sklearn.mixture import BayesianGaussianMixture

VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """A page read back: that it nests, its elements with attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.source, self.elements, self.open, self.text = text, [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += " " if tag in ("td", "th", "dt", "dd") else ""

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text += data

    def all(self, name):
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def words(self):
        """All text, with single spaces."""
        return " ".join(self.text.split())

    @property
    def sections(self):
        return [attributes["id"] for attributes in self.all("section")]

    @property
    def said(self):
        """What figures show, in words."""
        return [attributes["aria-label"] for attributes in self.all("svg")]


def report(fusion, path, **shown):
    fusion.report(path, **shown)
    return Page(path.read_bytes().decode("utf-8"))


def safe(page):
    """The page asks for nothing and runs nothing."""
    assert "://" not in page.source
    assert {"script", "link", "img", "iframe", "object", "base", "form"}.isdisjoint(tag for tag, _ in page.elements)
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "style", "srcset") for name in attributes)
        saves = attributes.get("class") == "download" and re.match(r"[a-z0-9-]+\.(csv|svg)$", attributes["download"])
        kinds = ("data:text/csv;base64,", "data:image/svg+xml;base64,")  # what is saved is in the page, and is no page
        assert attributes.get("href", "#").startswith(kinds if saves else "#")
    style = re.search(r"<style>(.*?)</style>", page.source, re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(attributes["content"] for attributes in page.all("meta") if "http-equiv" in attributes)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def readable(page):
    """The page says in words what it shows, and where what is."""
    assert page.elements[0] == ("html", {"lang": "en"})
    assert len(page.all("main")) == len(page.all("h1")) == 1
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert all(
        attributes.get("role") == "img" and re.search(r"\d", attributes["aria-label"]) for attributes in page.all("svg")
    )
    assert len(page.all("figure")) >= len(page.all("svg"))
    places = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert len(places) == sum("id" in attributes for _, attributes in page.elements)
    assert {attributes["href"][1:] for attributes in page.all("a") if attributes["href"].startswith("#")} <= places
    source = re.sub(r'href="data:[^"]*"', "", page.source)  # digits of base64 may spell anything
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b|Undefined|0x[0-9a-f]{6}", source)


def mixtures(sites=6, seed=0):
    """Sites of the paper's Figures 6 and 7: two of three Gaussian components in the plane each."""
    rng = np.random.default_rng(seed)
    means = np.array([[-4.0, 0.0], [1.0, 4.0], [4.0, -3.0]])
    models = []
    for site in range(sites):
        components = np.delete(np.arange(3), site % 3)
        centres = means[components] + 0.2 * rng.standard_normal((2, 2))
        rows = np.concatenate([centre + rng.standard_normal((60, 2)) for centre in centres])
        models.append(BayesianGaussianMixture(n_components=2, random_state=0, max_iter=1000).fit(rows))
    return models


PATH = [{"n_components": g, "cost": 100.0 / g} for g in (2, 3, 4)]


def telling(fusion, **result):
    """Return the fusion with just these details, so that what is tested here is not what a method finds."""
    provenance = dict(fusion.provenance)
    base = {name: provenance["result"][name] for name in ("n_components", "status", "objective")}
    provenance["inputs"] = [{k: v for k, v in record.items() if k != "confidence"} for record in provenance["inputs"]]
    provenance["result"] = {**base, "history": [9.0, 7.0, 7.0], "path": PATH, **result}
    return replace(fusion, provenance=provenance)


def enriched(fusion, **result):
    """Return the fusion as other methods may make it: with confidence, dropped components and more details."""
    provenance = dict(telling(fusion, **result).provenance)
    provenance["inputs"] = [dict(record, confidence=[0.97, 0.15]) for record in provenance["inputs"]]
    provenance["inputs"][2]["labels"] = [-1, provenance["inputs"][2]["labels"][1]]
    provenance["inputs"][2]["confidence"] = [None, 0.5]
    return replace(fusion, provenance=provenance)

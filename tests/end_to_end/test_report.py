"""What the report says of fusions of every kind."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation

import consilience as cs
from tests.end_to_end.pages import enriched, mixtures, readable, report, safe, telling
from tests.families.zoo import NAMES, ZOO

SECTIONS = ["in", "out", "loss", "who", "components", "certain", "found", "made"]


def test_a_mixture_has_every_section(fused, path):
    page = report(fused, path)
    safe(page)
    readable(page)
    assert page.sections == SECTIONS
    assert "6 models with 12 components → 3 components" in " ".join(page.text.split())
    assert "Converged." in page.text
    plane = next(text for text in page.said if "Centres" in text)
    assert plane.startswith("3 fused components over 12 local components. Centres of the fused: 0 at (")
    assert any("6 sites against 3 fused components. 3 components were found at several sites" in t for t in page.said)
    assert any(t.startswith("The objective against the step.") for t in page.said)
    assert any("number of components" in t and "3 was chosen" in t for t in page.said)
    assert any("fused components are surer than the median" in t for t in page.said)
    ellipses = [item["class"] for item in page.all("ellipse")]
    assert sum(kind.startswith("thin") for kind in ellipses) == 12
    assert [kind for kind in ellipses if kind.startswith("thick")] == ["thick k0", "thick k1", "thick k2"]
    counts = np.concatenate([item.value.counts for item in fused.inputs])
    assert f"{counts.min():,.1f}" in page.text
    assert f"{counts.sum():,.1f}" in page.text


def test_the_recommended_method_has_a_report_with_all_that_it_finds(path):
    fusion = cs.fuse(mixtures())
    page = report(fusion, path)
    safe(page)
    readable(page)
    assert set(SECTIONS) - {"loss"} <= set(page.sections)
    assert not re.search(r"in the file", page.text)  # nothing that it finds is left undrawn


def test_inputs_are_kept_as_given_and_not_saved(fused, tmp_path):
    assert [fused_input.name for fused_input in fused.inputs] == [f"model {i}" for i in range(6)]
    assert all(fused_input.weight == 1.0 and fused_input.sha256 is None for fused_input in fused.inputs)
    weighted = cs.fuse(mixtures(), weights=[2, 1, 1, 1, 1, 0])
    np.testing.assert_allclose([fused_input.weight for fused_input in weighted.inputs], [2, 1, 1, 1, 1, 0])
    assert "No vote: weight 0." in report(weighted, tmp_path / "weighted.html").text


def test_topics_have_words_instead_of_ellipses(path):
    rng = np.random.default_rng(0)
    names = [f"word-{i}" for i in range(30)]
    sites = []
    for _ in range(3):
        words = np.geomspace(1, 1e-4, 30)
        documents = np.concatenate([rng.multinomial(50, np.roll(words / words.sum(), s), 40) for s in (0, 9)])
        model = LatentDirichletAllocation(2, random_state=0).fit(documents)
        sites.append(cs.describe(model, features=cs.Features(names=names)))
    page = report(telling(cs.fuse(sites, n_components=2)), path)
    safe(page)
    readable(page)
    assert page.sections == list(SECTIONS)
    assert not page.all("ellipse")
    text = " ".join(page.text.split())
    assert re.search(r"word-0 \d\d\.\d, word-1 \d\d\.\d", text)
    assert re.search(r"word-9 \d\d\.\d, word-10 \d\d\.\d", text)


def test_k_means(path):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    sites = [
        KMeans(3, n_init=2, random_state=0).fit(np.repeat(centres, 20, 0) + rng.normal(size=(60, 2))) for _ in "abc"
    ]
    page = report(cs.fuse(sites, "kmeans", n_components=3), path)
    safe(page)
    readable(page)
    assert set(SECTIONS) - {"found", "loss"} <= set(page.sections)
    assert "Method kmeans: " in " ".join(page.text.split())
    assert "after ± its standard error: how surely the mean is known" in page.words
    assert "holds half of a component's posterior" in page.words
    assert "standard deviation of the observations" not in page.words
    assert "<code>held_out=</code>" in page.source
    assert "`" not in page.text


def test_numbers_of_components_in_one_place_stand_beside_each_other(path):
    spread = np.linspace(-1.0, 1.0, 80).reshape(40, 2)
    rows = np.repeat([[0.0, 0.0], [9.0, 9.0]], 20, axis=0)
    models = [KMeans(2, n_init=1, random_state=0).fit(rows + shift) for shift in (spread, 1.01 * spread)]
    page = report(cs.fuse(models, "concatenate"), path)
    marks = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="mark[^"]*"', page.source)
    places = [(float(x), float(y)) for x, y in marks]
    assert len(places) == 4
    assert all(abs(a - c) >= 15 or abs(b - d) >= 15 for i, (a, b) in enumerate(places) for c, d in places[i + 1 :])


@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_a_report(name, path):
    family, rng = ZOO[name].family, np.random.default_rng(0)
    sites = [cs.Posterior(family, ZOO[name].draw(rng, 3)) for _ in range(3)]
    page = report(cs.fuse(sites, n_components=3, restarts=1), path)
    safe(page)
    readable(page)
    assert set(SECTIONS) - {"components", "certain", "found", "loss"} <= set(page.sections)
    placed = {"gaussian", "diagonal-gaussian", "spherical-gaussian", "known-covariance-gaussian", "normal-wishart"}
    placed |= {"normal-gamma", "spherical-normal-gamma", "point"}
    assert any("Centres" in text for text in page.said) == (name in placed)
    assert ("certain" in page.sections) == (name not in ("point", "known-covariance-gaussian"))


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
@pytest.mark.parametrize("components", [1, 2, 4])
def test_components_are_drawn_in_any_dimension(dim, components, path):
    for kind in (cs.families.Gaussian(dim), cs.families.DiagonalGaussian(dim)):
        rng = np.random.default_rng(dim)
        mean = 5 * rng.normal(size=(components, dim))
        full = {"covariance": [np.eye(dim)] * components}
        widths = full if isinstance(kind, cs.families.Gaussian) else {"variance": np.ones((components, dim))}
        sites = [
            cs.Posterior(kind, kind.to_natural(mean=mean + 0.1 * rng.normal(size=mean.shape), **widths)) for _ in "ab"
        ]
        page = report(cs.fuse(sites, n_components=components), path)
        drawn = [attributes for tag, attributes in page.elements if attributes.get("class", "").startswith("thick")]
        assert len(drawn) == components
        assert ("directions in which fused means differ most" in page.text) == (dim > 2)


def test_everything_that_a_method_may_find_is_shown(fused, path):
    sizes = [{"n_components": g, "cost": 100.0 / g, "criterion": 5.0 - g} for g in (2, 3, 4, 5, 6)]
    sizes[0]["criterion"] = 1e4  # which would flatten the rest
    rich = enriched(
        fused,
        status="at_capacity",
        path=sizes,
        heterogeneity={"precision": 0.25, "mean": 1.5},
        outliers=[{"name": "model 4", "why": why} for why in ("is far away", "looks like a blend")],
        left_out=1,
        weather="fair",
        tables={"deep": [1, 2]},
    )
    page = report(rich, path)
    safe(page)
    readable(page)
    text = " ".join(page.text.split())
    assert page.sections == [*SECTIONS[:-1], "differ", "made"]
    assert "At capacity. Every one of max_components is in use" in text
    assert "Outlier: is far away; looks like a blend." in text
    assert text.index("mean 1.5") < text.index("precision 0.25")
    assert "weather fair" in text
    assert "tables in the file" in text
    assert "1 component left out: too few observations." in text
    assert any(text.endswith("1 local component dropped.") for text in page.said)
    assert any(text.startswith("The criterion against the number of components") for text in page.said)
    assert sum(attributes.get("class") == "above" for attributes in page.all("path")) == 1
    shades = {attributes.get("class") for attributes in page.all("rect")}
    assert {"cell s5", "cell s1", "cell gone"} <= shades
    assert "confidence 0.97" in page.source


def test_the_same_fusion_gives_the_same_bytes(fused, tmp_path):
    fused.report(tmp_path / "one.html")
    telling(cs.fuse(mixtures(), n_components=3)).report(tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def many(sites, seed=0):
    rng, family = np.random.default_rng(seed), cs.families.NormalWishart(3)
    centres = 6 * rng.normal(size=(5, 3))
    posteriors = []
    for _ in range(sites):
        components = rng.choice(5, rng.integers(2, 5), replace=False)
        kappa = rng.uniform(5, 50, len(components))
        scales = kappa[:, None, None] * np.eye(3)
        mean = centres[components] + 0.3 * rng.normal(size=(len(components), 3))
        natural = family.to_natural(mean=mean, kappa=kappa, inverse_scale=scales, dof=kappa + 3)
        posteriors.append(cs.Posterior(family, natural, counts=kappa))
    return posteriors


@pytest.mark.slow
def test_a_thousand_sites_are_summed_up(path):
    page = report(enriched_confidence(cs.fuse(many(1000), n_components=5, restarts=1)), path)
    safe(page)
    readable(page)
    assert len(page.source) < 300_000  # far below the two million that a page may have
    text = " ".join(page.text.split())
    assert "1,000 models" in text
    assert "and 940 sites more" in text
    assert "model 59" in text
    assert "model 60" not in text
    assert any(text.startswith("The share of 1,000 sites") for text in page.said)
    assert re.search(r"\d+ of [\d,]+ local components are drawn", text)


def enriched_confidence(fusion):
    provenance = dict(fusion.provenance)
    provenance["inputs"] = [dict(record, confidence=[0.5] * record["components"]) for record in provenance["inputs"]]
    return replace(fusion, provenance=provenance)


def test_many_components_are_summed_up_too(path):
    page = report(cs.fuse(many(60), "concatenate"), path)
    safe(page)
    readable(page)
    assert len(page.source) < 450_000  # with its figures and tables as files
    assert "components more" in page.text


def test_sites_are_in_the_order_of_their_names(tmp_path, path):
    for number, model in enumerate(mixtures(12), 1):
        cs.save(model, tmp_path / f"site-{number}.safetensors")
    fusion = cs.fuse([tmp_path / f"site-{number}.safetensors" for number in (10, 2, 1, 11, 12, 3, 4, 5, 6, 7, 8, 9)])
    page = report(fusion, path)
    assert re.findall(r"^(site-\d+) $", page.text, re.MULTILINE)[:12] == [f"site-{number}" for number in range(1, 13)]
    assert fusion.inputs[0].sha256 == hashlib.sha256((tmp_path / "site-10.safetensors").read_bytes()).hexdigest()
    assert fusion.inputs[0].sha256 in page.text


def test_why_robust_fusion_left_a_site_out_is_said_in_the_same_words_everywhere(fused):
    left_out = [{"model": "model 2", "step": "gate", "score": 9.0}]
    told = {"left_out": left_out, "tolerated": 1, "unseen_error_ratio": 2.0}
    robust = replace(fused, details={**fused.details, "robust": told})
    assert "model 2 (far from most models) was left out" in robust.verdict.text
    assert "gate" not in robust.summary()

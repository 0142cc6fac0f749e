"""Components with labels: a classifier that the library never heard of, matched by its classes and not permuted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience.posteriors.adapters import table
from tests.posteriors.labelled_classifier import GaussianClasses, GaussianClassesAdapter
from tests.tolerances import CONJUGATE_UPDATE

CENTRES = {"ant": (0.0, 0.0), "bee": (0.2, 0.1), "cat": (6.0, 0.0), "dog": (0.0, 6.0)}
SITES = {"lund": ("cat", "ant", "bee"), "oslo": ("bee", "dog"), "turku": ("dog", "cat", "bee")}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_REGISTERED", [])
    cs.register_adapter(GaussianClassesAdapter())


def rows_of(site: int, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(site)
    labels = np.repeat(classes, 20 + 5 * site)
    return np.array([CENTRES[label] for label in labels]) + rng.normal(size=(len(labels), 2)), labels


DATA = {name: rows_of(number, classes) for number, (name, classes) in enumerate(SITES.items())}


def fitted() -> dict[str, GaussianClasses]:
    return {name: GaussianClasses().fit(*data) for name, data in DATA.items()}


def pooled() -> GaussianClasses:
    rows, labels = (np.concatenate(parts) for parts in zip(*DATA.values(), strict=True))
    return GaussianClasses().fit(rows, labels)


def test_the_product_of_classifiers_is_the_one_of_the_pooled_data() -> None:
    fusion = cs.fuse(fitted())
    assert_array_equal(fusion.model.classes, pooled().classes)
    for name in ("counts", "means", "variances"):
        assert_allclose(getattr(fusion.model, name), getattr(pooled(), name), rtol=CONJUGATE_UPDATE)


def test_classes_that_look_alike_are_not_merged_nor_permuted() -> None:
    """Ants and bees have nearly one mean: a divergence could not tell them apart."""
    fusion = cs.fuse(fitted())
    classes = np.array(fusion.posterior.features.classes)
    names = np.concatenate([model.classes for model in fitted().values()])
    assert_array_equal(classes[fusion.matching.labels], names)


def test_a_site_without_weight_is_labelled_too_and_brings_no_class() -> None:
    fusion = cs.fuse(fitted(), weights={"lund": 0.0, "oslo": 1.0, "turku": 1.0})
    assert fusion.posterior.features.classes == ("bee", "cat", "dog")
    assert fusion.matching.of_site(0).tolist() == [-1, 0, 1]  # ant, bee, cat


def test_classes_of_few_sites_can_be_left_out() -> None:
    fusion = cs.fuse(fitted(), minority="drop")
    assert fusion.posterior.features.classes == ("bee", "cat", "dog")
    assert fusion.matching.of_site(0).tolist() == [-1, 0, 1]


def test_files_fuse_to_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    for name, model in fitted().items():
        cs.save(model, tmp_path / f"{name}.safetensors")
    paths = sorted(tmp_path.iterdir())
    assert cs.check(paths) == []
    cs.fuse(paths).save(tmp_path / "fused.safetensors")
    cs.fuse(paths[::-1]).save(tmp_path / "again.safetensors")
    assert (tmp_path / "fused.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert cs.load(tmp_path / "fused.safetensors").features.classes == ("ant", "bee", "cat", "dog")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "spahm"}, "method 'spahm'"),
        ({"method": "average"}, "method 'average'"),
        ({"method": "kl", "max_components": 2}, "max_components"),
        ({"method": "kl", "min_matching_count": 1000.0}, "min_matching_count"),
        ({"method": "kl", "n_components": 4}, "n_components"),
    ],
)
def test_what_would_ask_who_is_who_is_refused(options: dict[str, object], text: str) -> None:
    problems = cs.check(fitted(), **options)
    assert any(
        problem.startswith(f"{text}: the components of a tests.GaussianClasses have labels") for problem in problems
    )


def test_labels_that_are_missing_or_double_are_refused() -> None:
    described = [cs.describe(model) for model in fitted().values()]
    for classes, text in ((None, "has no labels"), (("bee", "bee"), "has the label 'bee' for 2 components")):
        broken = cs.Posterior(
            described[1].family, described[1].natural, prior=described[1].prior, counts=described[1].counts,
            features=cs.Features(classes=classes), source=described[1].source,
        )  # fmt: skip
        problems = cs.check({"lund": described[0], "oslo": broken})
        assert any(problem.startswith(f"oslo: {text}") for problem in problems)


def test_a_robust_average_leaves_out_a_hostile_class() -> None:
    models = {f"site {n}": GaussianClasses().fit(*rows_of(n, ("ant", "cat"))) for n in range(5)}
    models["site 4"].means = models["site 4"].means + 100.0
    fusion = cs.fuse(models, robust="trim")
    assert_allclose(fusion.model.means, [CENTRES["ant"], CENTRES["cat"]], atol=0.5)


def test_shards_of_labelled_components_are_refused(tmp_path: Path) -> None:
    for number in range(4):
        cs.save(GaussianClasses().fit(*rows_of(number, ("ant", "cat"))), tmp_path / f"{number}.safetensors")
    with pytest.raises(
        cs.errors.InputError, match="have labels, which only a fusion in memory reads; hand in the files"
    ):
        cs.fuse(tmp_path, method="kl", pilot_sites=2)
    fusion = cs.fuse(tmp_path)  # so few sites are fused in memory
    assert fusion.posterior.features.classes == ("ant", "cat")


def test_an_ensemble_of_labelled_models_has_no_labels_of_its_own() -> None:
    assert cs.fuse(fitted(), method="ensemble").posterior.features.classes is None

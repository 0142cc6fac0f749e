"""An adapter that breaks a law is told which. Those of the library: tests/posteriors/test_every_adapter.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import consilience as cs
from consilience.core.features import Features
from consilience.core.scores import Scores
from consilience.posteriors.posterior import Posterior
from consilience.testing import BrokenLawError, check_adapter
from tests.posteriors.labelled_classifier import GaussianClasses, GaussianClassesAdapter

RNG = np.random.default_rng(0)
ROWS = np.concatenate([centre + RNG.normal(size=(30, 2)) for centre in ((0.0, 0.0), (5.0, 5.0))])
MODEL = GaussianClasses().fit(ROWS, np.repeat(["left", "right"], 30))


class _OfNobody(GaussianClassesAdapter):
    class_name = "Nobody"


class _Nameless(GaussianClassesAdapter):
    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        return replace(super().describe(model, n_observations), features=Features())


class _OfAnotherKind(GaussianClassesAdapter):
    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        return replace(super().describe(model, n_observations), source={"kind": "tests.Other"})


class _Lossy(GaussianClassesAdapter):
    def rebuild(self, posterior: Posterior) -> GaussianClasses:
        model = super().rebuild(posterior)
        model.means = model.means.round(1)
        return model


class _Credulous(GaussianClassesAdapter):
    def rebuild(self, posterior: Posterior) -> GaussianClasses:
        return super().rebuild(posterior) if posterior.n_components > 5 or posterior.counts is not None else MODEL


class _Misspelt(GaussianClassesAdapter):
    components = "labeled"


class _Unfinished(GaussianClassesAdapter):
    def scores(self, model: Any, data: Any) -> Scores:
        scores = super().scores(model, data)
        return replace(scores, values=np.full_like(scores.values, np.nan))


def test_it_keeps_the_laws() -> None:
    check_adapter(GaussianClassesAdapter(), MODEL, data=ROWS)


@pytest.mark.parametrize(
    ("adapter", "law"),
    [
        (_Misspelt(), "an adapter says what it is for"),
        (_OfNobody(), "one adapter alone accepts a model"),
        (_Nameless(), "every component has one label"),
        (_OfAnotherKind(), "a fitted model is described as a posterior of its kind"),
        (_Lossy(), "what is rebuilt is of its class and described the same"),
        (_Credulous(), "a posterior of another family is refused"),
        (_Unfinished(), "every observation has a score and a component"),
    ],
)
def test_a_broken_law_is_named(adapter: GaussianClassesAdapter, law: str) -> None:
    with pytest.raises(BrokenLawError, match=f"^{law}: "):
        check_adapter(adapter, MODEL, data=ROWS)


@pytest.mark.parametrize("adapter", [GaussianClassesAdapter, "GaussianClasses", None])
def test_only_adapters_are_registered(adapter: Any) -> None:
    with pytest.raises(cs.errors.OptionError, match="expected an instance of a subclass of Adapter"):
        cs.register_adapter(adapter)


def test_a_class_that_the_library_knows_is_not_registered_again() -> None:
    class Copied(GaussianClassesAdapter):
        library, class_name = "sklearn", "KMeans"

    with pytest.raises(cs.errors.OptionError, match=r"there is one for sklearn\.KMeans already"):
        cs.register_adapter(Copied())

"""hmmlearn's PoissonHMM, in and out: states that emit counts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families import Gamma, Product
from consilience.posteriors.adapters.hmmlearn.base import PointEstimateAdapter
from consilience.posteriors.adapters.hmmlearn.parameters import as_positive
from consilience.posteriors.posterior import Posterior


class PoissonHMMAdapter(PointEstimateAdapter):
    """States with a rate for every column, as the Gamma that n_k rows of such counts give.

    Under a flat prior of rates, n_k rows of mean lambda give Gamma(1 + n_k lambda, n_k); the fused rates are the means
    of the summed counts.
    """

    kind: ClassVar[str] = "hmmlearn.PoissonHMM"
    class_name: ClassVar[str] = "PoissonHMM"
    emission: ClassVar[str] = "lambdas_"
    follows_order: ClassVar[bool] = True

    def observations(self, model: Any, data: Any) -> Any:
        """Return counts as whole numbers."""
        values = np.asarray(data)
        bad = np.argwhere(~((values >= 0) & (values == np.round(values))))
        if len(bad):
            row, column = bad[0][:2]
            text = f"row {row}, counted from 0: expected a count, found {values[row, column]}"
            raise InputError("", text, code="E-NUMBER")
        return values.astype(np.int64)

    def n_columns(self, posterior: Posterior) -> int:
        """Return the number of columns of counts."""
        return posterior.family.size // 2

    def describe_emissions(self, model: Any, counts: Array, states: Labels) -> Posterior:
        """Return the posterior of the rates of counts."""
        rates = as_positive("lambdas_", model.lambdas_, (len(counts), np.atleast_2d(model.lambdas_).shape[-1]))
        n_columns = rates.shape[1]
        natural = np.stack(
            [counts[:, None] * rates, np.repeat(-counts[:, None], n_columns, axis=1)], axis=2
        )  # (K, D, 2)
        family = _family_of(n_columns)
        return Posterior(family, natural.reshape(len(counts), -1)[states], prior=np.zeros(family.size))

    def rebuild_emissions(self, posterior: Posterior) -> Any:
        """Return a PoissonHMM with rates of counts."""
        from hmmlearn.hmm import PoissonHMM

        natural = posterior.natural.reshape(posterior.n_components, -1, 2)  # (K, D, 2)
        self.require_family(posterior, Product if natural.shape[1] > 1 else Gamma)
        model = PoissonHMM(n_components=posterior.n_components)
        model.lambdas_ = natural[:, :, 0] / -natural[:, :, 1]
        model.n_features = natural.shape[1]
        return model


def _family_of(n_columns: int) -> Gamma | Product:
    """Return the family of the rates of some columns."""
    return Gamma() if n_columns == 1 else Product({f"rate {column}": Gamma() for column in range(n_columns)})

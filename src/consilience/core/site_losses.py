"""Losses of models on rows that sites held out: the sums that leave a site, and the choice that they make.

Site j of n_j observations holds out m_j rows. With l_jk the mean loss of model k on them, the loss of a model is

    L_k = sum_j p_j l_jk,        p_j = n_j / sum_j n_j,

and of two models the difference has the standard error

    se^2 = sum_j p_j^2 Var_j(loss_k - loss_l) / m_j,

both from sums over rows: of losses, and of products of two losses. Where sites may be hostile the median over sites
takes the place of the mean.

Sites' own models are compared in one of two ways. Where every site agreed to share its own, all are candidates, scored
at all sites, and one of them is kept unless a fused one is better by a standard error. Where not, every site scores its
own on its own rows beside the fused ones: what is compared is the fused model with what each site has today, and the
fused one of least loss is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Json, Labels
from consilience.core.held_out import MIN_HELD_OUT
from consilience.core.min_count import shown_count
from consilience.core.verdict import Verdict
from consilience.drawing.words import first_names, format_count
from consilience.errors import InputError

STANDARD_ERRORS_OF_CHOICE = 1.0
"""Standard errors by which a fused model must be better than a site's own to be taken in its place. On 53 fusions that
shaped nothing it was never worse than the best site by more than a tenth of a point."""
STANDARD_ERRORS_OF_HARM = 2.0
"""Standard errors by which it must be better, for harm to be excluded: a 95 % interval."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for Gaussian numbers: sqrt(pi / 2)."""
SITE = "site:"
"""What names of candidates begin with that are the own models of sites."""
OWN = "own"
"""What a site calls its own model among those that it scores: the first."""
HELD_OUT = "on rows that sites held out"
"""How the criterion of a choice at the sites ends."""
MAX_NAMED = 3
"""Sites or classes that a sentence names; further ones are counted. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class RowLosses:
    """Losses of K models on n rows."""

    criterion: str  # what a loss is, such as "error"
    values: Array  # (K, n)
    ties: Array  # (K, n), losses that break ties
    labels: Labels | None = None  # (n,), the class of every row, -1 for none; None where there are no classes
    n_classes: int = 0
    is_share: bool = False  # whether a mean loss is a share of rows, written in percent


@dataclass(frozen=True, eq=False)
class LossSums:
    """Sums over the held-out rows of a site; the first model is the site's own."""

    n: int  # rows
    losses: Array  # (K,), sums of losses
    products: Array  # (K, K), sums of products of two models' losses
    ties: Array  # (K,), sums of losses that break ties
    counts: Array  # (C,), rows of every class; 0 of classes that are withheld
    errors: Array  # (K, C), sums of losses by class

    @property
    def means(self) -> Array:
        """Mean losses (K,)."""
        means: Array = self.losses / self.n
        return means

    def difference(self, one: int, other: int) -> tuple[float, float]:
        """Return the mean of one model's losses less another's, and its standard error."""
        total = float(self.losses[one] - self.losses[other])
        square = float(self.products[one, one] - 2.0 * self.products[one, other] + self.products[other, other])
        mean = total / self.n
        variance = max(0.0, square / self.n - mean**2) * self.n / max(1, self.n - 1)
        return mean, float(np.sqrt(variance / self.n))


def sums_of_losses(rows: RowLosses, min_count: float) -> LossSums:
    """Return the sums over rows; classes of fewer than `min_count` rows are withheld, and with them one more at least.

    What is withheld is then no smaller than `min_count` together, so that the sum of all does not tell it. Raises
    InputError for fewer rows than a comparison needs.
    """
    n = rows.values.shape[1]
    if n < MIN_HELD_OUT:
        text = f"has {n} rows, and a comparison needs {MIN_HELD_OUT}"
        raise InputError("held-out rows", text, "hold out more of them before training", "E-FEW")
    counts, errors = np.zeros(rows.n_classes), np.zeros((len(rows.values), rows.n_classes))
    if rows.labels is not None and rows.n_classes:
        is_known = rows.labels >= 0
        counts = np.bincount(rows.labels[is_known], minlength=rows.n_classes).astype(np.float64)
        for of_model, total in zip(rows.values, errors, strict=True):
            total += np.bincount(rows.labels[is_known], of_model[is_known], minlength=rows.n_classes)
        hidden = _withheld(counts, n, min_count)
        counts, errors = np.where(hidden, 0.0, counts), np.where(hidden, 0.0, errors)
    return LossSums(n, rows.values.sum(axis=1), rows.values @ rows.values.T, rows.ties.sum(axis=1), counts, errors)


def _withheld(counts: Array, n: int, min_count: float) -> NDArray[np.bool_]:
    """Return which classes are withheld (C,): the small ones, and the next larger until they are not small together."""
    hidden: NDArray[np.bool_] = (counts > 0) & (counts < min_count)
    if hidden.any():
        without = n - counts.sum()  # rows without a class are hidden too
        for number in np.argsort(counts, kind="stable"):
            if without + counts[hidden].sum() >= min_count:
                break
            hidden[number] = True
    return hidden


@dataclass(frozen=True)
class AtSite:
    """What a site's held-out rows say of the chosen model."""

    site: str
    rows: int
    own: float  # mean loss of the site's own model
    chosen: float  # mean loss of the chosen one
    standard_error: float  # of their difference

    @property
    def gain(self) -> float:
        """By how much the chosen model is better."""
        return self.own - self.chosen

    @property
    def sign(self) -> int:
        """1 where the chosen model is better at this site by two standard errors, -1 where the own one is, else 0."""
        bound = STANDARD_ERRORS_OF_HARM * self.standard_error
        return int(self.gain > bound) - int(self.gain < -bound)


@dataclass(frozen=True, eq=False)
class SiteChoice:
    """The choice among models by the losses of sites.

    Parameters
    ----------
    names : sequence of str
        What the models are called, without the first one, the site's own.
    is_site : sequence of bool
        Which of them are the own models of sites.
    sums : mapping of str to LossSums
        What every site answered.
    weights : mapping of str to float
        Observations of every site.
    criterion : str
        What a loss is.
    is_share : bool
        Whether it is written in percent. Default: False.
    is_robust : bool
        Whether the median over sites counts. Default: False.
    left_out : mapping of str to str
        Sites whose answers do not count, with why. Default: none.
    is_summed : bool
        Whether the only answer is the sum of those of all sites, so that nothing is known of any one. Default: False.
    """

    names: Sequence[str]
    is_site: Sequence[bool]
    sums: Mapping[str, LossSums]
    weights: Mapping[str, float]
    criterion: str
    is_share: bool = False
    is_robust: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_summed: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether the own models of sites are among those that all sites scored."""
        return any(self.is_site)

    @cached_property
    def _shares(self) -> Array:
        """The weight of every site (J,); the weights sum to 1."""
        weights = np.array([self.weights[site] for site in self.sums])
        return weights / weights.sum()

    def difference(self, one: int, other: int) -> tuple[float, float]:
        """Return how much larger one model's loss is than another's at all sites, and the standard error.

        Models are numbered as sites number them: 0 is each site's own.
        """
        found = np.array([of_site.difference(one, other) for of_site in self.sums.values()])  # (J, 2)
        means, errors = found[:, 0], found[:, 1]
        if not self.is_robust:
            return float(self._shares @ means), float(np.sqrt(np.square(self._shares * errors).sum()))
        centre = float(np.median(means))
        spread = MEDIAN_ERROR * 1.4826 * float(np.median(np.abs(means - centre))) / len(means) ** 0.5
        return centre, max(spread, MEDIAN_ERROR * float(np.sqrt(np.square(errors).sum())) / len(means))

    @cached_property
    def losses(self) -> Array:
        """Loss (1 + K,) of every model at all sites, of the sites' own first."""
        return self._over_sites([of_site.means for of_site in self.sums.values()])

    @cached_property
    def _ties(self) -> Array:
        return self._over_sites([of_site.ties / of_site.n for of_site in self.sums.values()])

    def _over_sites(self, values: Sequence[Array]) -> Array:
        """Return the weighted mean, or the median, over sites."""
        of_sites = np.stack(values)  # (J, 1 + K)
        result: Array = np.median(of_sites, axis=0) if self.is_robust else self._shares @ of_sites
        return result

    @cached_property
    def chosen(self) -> int:
        """The number of the chosen model, from 1."""
        fused = [k + 1 for k, is_site in enumerate(self.is_site) if not is_site]
        own = [k + 1 for k, is_site in enumerate(self.is_site) if is_site]
        best = min(fused, key=self._rank)
        if not own:
            return best
        best_site = min(own, key=self._rank)
        gain, error = self.difference(best_site, best)
        return best if gain > STANDARD_ERRORS_OF_CHOICE * error else best_site

    def _rank(self, number: int) -> tuple[float, float, int]:
        return float(self.losses[number]), float(self._ties[number]), number

    @property
    def name(self) -> str:
        """What the chosen model is called."""
        return self.names[self.chosen - 1]

    @cached_property
    def harmless(self) -> bool | None:
        """Whether the chosen model is better by two standard errors than each site's, or worse than one; else None.

        Where sites share their models, than the model of every site at all sites. Else than what each has today, at
        all sites together, which may be better for its own mix of classes where no single model is for all: it is then
        None.
        """
        others = [k + 1 for k, is_site in enumerate(self.is_site) if is_site and k + 1 != self.chosen] or [0]
        signs = []
        for other in others:
            gain, error = self.difference(other, self.chosen)
            bound = STANDARD_ERRORS_OF_HARM * error
            signs.append(int(gain > bound) - int(gain < -bound))
        if -1 in signs:
            return False if self.is_shared else None
        return True if all(sign == 1 for sign in signs) else None

    @cached_property
    def by_site(self) -> list[AtSite]:
        """What every site's rows say."""
        return [
            AtSite(site, one.n, float(one.means[0]), float(one.means[self.chosen]), one.difference(0, self.chosen)[1])
            for site, one in self.sums.items()
        ]

    @cached_property
    def worse_classes(self) -> list[tuple[str, int, float, float]]:
        """Site, class, loss of the site's own model and of the chosen, where the own is better by two standard errors.

        The standard error takes losses in one class as those of independent rows with errors of 0 or 1.
        """
        found = []
        for site, one in self.sums.items():
            for number in np.flatnonzero(one.counts):
                n = float(one.counts[number])
                own, chosen = (float(one.errors[k, number]) / n for k in (0, self.chosen))
                # Of few rows that are all right or all wrong the variance is not zero: two more are taken to be there.
                variance = sum((p * n + 1) * (n - p * n + 1) / (n + 2) ** 2 for p in (own, chosen))
                if self.is_share and chosen - own > STANDARD_ERRORS_OF_HARM * (variance / n) ** 0.5:
                    found.append((site, int(number), own, chosen))
        return found

    def to_json(self) -> dict[str, Json]:
        """Return what sites say as JSON values; numbers of rows as they are shown to people."""
        by_site: list[Json] = [
            {
                "site": one.site,
                "rows": shown_count(one.rows),
                "own": one.own,
                "chosen": one.chosen,
                "standard_error": one.standard_error,
            }
            for one in self.by_site
        ]
        worse: list[Json] = [
            {"site": site, "class": number, "own": own, "chosen": chosen}
            for site, number, own, chosen in self.worse_classes
        ]
        return {
            "chosen": self.name,
            "shared": self.is_shared,
            "criterion": self.criterion,
            "losses": dict(zip([OWN, *self.names], self.losses.tolist(), strict=True)),
            "harmless": self.harmless,
            "sites": by_site,
            "worse_classes": worse,
        }

    def written(self, loss: float) -> str:
        """Return a mean loss as text."""
        return f"{loss:.1%}" if self.is_share else f"{loss:.4g}"

    def verdict(self) -> Verdict:
        """Return the verdict."""
        best_own = min((k + 1 for k, is_site in enumerate(self.is_site) if is_site), key=self._rank, default=0)
        of_own = "best site's own" if self.is_shared else "what each site has today"
        rows = sum(one.rows for one in self.by_site)
        found = (
            f"{self.written(self.losses[self.chosen])} {self.criterion} ({of_own} "
            f"{self.written(self.losses[best_own])}), on about {shown_count(rows):,.0f} rows that "
            f"{'all sites' if self.is_summed else format_count(len(self.sums), 'site')} held out"
        )
        remedy = None
        if self.is_site[self.chosen - 1]:
            code, text = "site", f"No fused model is clearly better than {self.name}, which is taken: {found}."
        elif self.harmless is False:
            code, text = "harm", f"Taken: {self.name}, which is worse than {of_own}, with {found}."
            remedy = "let each site keep its own model"
        else:
            code, text = "sites", f"Chosen at the sites: {self.name}, with {found}."
        names = [OWN, *self.names]
        compared = [*range(1, len(names)), *([] if self.is_shared else [0])]
        return Verdict(
            code=code,
            text=" ".join([text, *self._sentences()]),
            harmless=self.harmless,
            candidates={names[k]: float(f"{self.losses[k]:.6g}") for k in compared},
            criterion=f"{self.criterion} {HELD_OUT}",
            remedy=remedy,
            chosen=self.name,
            errors={names[k]: float(f"{self.difference(k, best_own)[1]:.6g}") for k in compared if k != best_own},
        )

    @property
    def _open(self) -> str:
        """What is said where harm is not excluded."""
        if not self.is_shared and self.losses[0] < self.losses[self.chosen]:
            return (
                "For its own mix of rows each site has a better model today, all together; for that of all no site may."
            )
        return "These rows cannot tell whether it is better than those of the sites."

    def _sentences(self) -> list[str]:
        """Return what is known of single sites and classes, and whose answers do not count."""
        notes = []
        if self.is_summed:
            notes.append("At which sites the own model is better no sum tells; every site knows it of itself.")
        elif worse := [one for one in self.by_site if one.sign < 0]:
            listed = [f"{one.site} ({self.written(one.own)} against {self.written(one.chosen)})" for one in worse]
            notes.append(f"On its own rows the own model is better at {first_names(listed, MAX_NAMED)}.")
        if self.harmless is None:
            notes.append(self._open)
        if self.worse_classes and not self.is_summed:
            listed = [
                f"class {number} at {site} ({self.written(own)} against {self.written(chosen)})"
                for site, number, own, chosen in self.worse_classes
            ]
            notes.append(f"The own model is better in {first_names(listed, MAX_NAMED)}.")
        if self.left_out:
            listed = [f"{site} ({reason})" for site, reason in self.left_out.items()]
            notes.append(f"Left out: {first_names(listed, MAX_NAMED)}.")
        return notes

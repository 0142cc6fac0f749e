"""Meta-analysis of estimates with covariances: fixed and random effects, heterogeneity, prediction intervals.

Sources: DerSimonian and Laird (1986), Paule and Mandel (1982), Viechtbauer (2005) for REML, Hartung and Knapp (2001),
Jackson and Riley (2014) for several coefficients, Higgins, Thompson and Spiegelhalter (2009) for prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy.special import chdtrc, ndtri, stdtrit

from consilience.checks import Array, is_number
from consilience.core.scores import LEVEL
from consilience.core.verdict import Verdict
from consilience.drawing.display import Displayed, Tabular, names_in_line
from consilience.drawing.plots import Chart, Plotted, draw_funnel, draw_intervals
from consilience.drawing.words import format_count, printable, shorten
from consilience.errors import InputError, OptionError
from consilience.estimators.meta_analysis.between_sites import (
    Method,
    SiteEstimates,
    between_site_covariance,
    pool,
)
from consilience.estimators.meta_analysis.counts import Measure, checked_measure
from consilience.estimators.meta_analysis.effects import Effects, Interval, normal_effects, random_effects
from consilience.estimators.meta_analysis.inputs import read_estimates
from consilience.estimators.meta_analysis.regression import MetaRegression, regress
from consilience.files.atomic import refuse_to_replace

FEW_SITES = 5
"""Below so many sites tau^2 is hardly estimable: with 3, its normal 95 % intervals cover 89.5 % where tau^2 = 0.15."""

SIGNIFICANCE, MUCH_HETEROGENEITY = 0.05, 0.5
"""A p-value of Q below the one, or I^2 above the other, says that coefficients differ between sites; both customary
(Higgins and Thompson 2002)."""

_ROUNDING = 1e-9
"""Part of an interval's width that is rounding."""

_SHORT_METHODS = {"dl": "dersimonian_laird", "pm": "paule_mandel"}


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Cochran's test that all sites have the same coefficients.

    Parameters
    ----------
    q : float
        Q, the squared deviations from the fixed effect in units of the sites' own covariances.
    degrees_of_freedom : int
        Number of estimates less the number of coefficients.
    p_value : float
        Probability of so large a Q where sites do not differ.
    i2 : float
        I^2 = max(0, 1 - df / Q), the share of the scatter that is between sites.
    """

    q: float
    degrees_of_freedom: int
    p_value: float
    i2: float

    @classmethod
    def of(cls, sites: SiteEstimates) -> Heterogeneity:
        """Return the test of some estimates."""
        p = sites.known.shape[1]
        q, freedom = pool(sites, np.zeros((p, p))).squares, sites.n_free
        if freedom < 1:
            return cls(0.0, 0, 1.0, 0.0)
        return cls(q, freedom, float(chdtrc(freedom, q)), max(0.0, 1.0 - freedom / q) if q > 0 else 0.0)

    @property
    def is_marked(self) -> bool:
        """Whether coefficients are said to differ between sites."""
        return self.p_value < SIGNIFICANCE or self.i2 > MUCH_HETEROGENEITY


@dataclass(frozen=True, eq=False, repr=False)
class MetaAnalysis(Displayed, Plotted, Tabular):
    """Estimates of several sites pooled with fixed and with random effects.

    Parameters
    ----------
    sites, coefficients : tuple of str
        Names of the J sites and the p coefficients.
    estimates : ndarray of shape (J, p)
        What sites estimated; nan where a site lacks a coefficient.
    covariances : ndarray of shape (J, p, p)
        Their covariances; nan likewise.
    fixed : Effects
        The fixed effect, which is the product of the sites' normal likelihoods; normal intervals.
    random : Effects
        The mean over sites.
    between : ndarray of shape (p, p)
        T, the covariance between sites.
    prediction : ndarray of shape (p, 2)
        Intervals for the coefficients of another site, mu +- t_{J-2} sqrt(tau^2 + Var mu); nan for fewer than 3 sites.
    heterogeneity : Heterogeneity
        Of all coefficients together.
    of_coefficients : tuple of Heterogeneity
        Of each coefficient alone.
    weights : ndarray of shape (J, p)
        Share of each site in each coefficient's random effect, by its variance alone.
    method, interval : str
        How T was estimated, and how intervals were made.
    is_diagonal : bool
        Whether coefficients were held to vary independently between sites.
    level : float
        Probability of all intervals.
    iterations : int
        Iterations of the estimate of T.
    verdict : Verdict
        Whether coefficients differ between sites, in one sentence.
    """

    sites: tuple[str, ...]
    coefficients: tuple[str, ...]
    estimates: Array
    covariances: Array
    fixed: Effects
    random: Effects
    between: Array
    prediction: Array
    heterogeneity: Heterogeneity
    of_coefficients: tuple[Heterogeneity, ...]
    weights: Array
    method: Method
    interval: str
    is_diagonal: bool
    level: float
    iterations: int
    verdict: Verdict = field(repr=False)

    @property
    def tau2(self) -> Array:
        """Variance between sites of each coefficient (p,)."""
        variances: Array = np.diag(self.between).copy()
        return variances

    @property
    def i2(self) -> Array:
        """I^2 of each coefficient (p,)."""
        return np.array([one.i2 for one in self.of_coefficients])

    @property
    def narrower(self) -> tuple[str, ...]:
        """Coefficients whose random-effects interval is narrower than that of the fixed effect."""
        return tuple(self.coefficients[c] for c in _narrower(self.random, self.fixed))

    def leave_one_out(self) -> dict[str, MetaAnalysis]:
        """Return the analysis of all sites but one, by the name of the site that is left out.

        An effect that one site makes is no effect of all. Raises InputError where two sites would not be left.
        """
        if len(self.sites) < 3:
            raise InputError("leave_one_out", f"leaves {len(self.sites) - 1} of {len(self.sites)} sites", code="E-FEW")
        observed, found = self._observed, {}
        for place, site in enumerate(self.sites):
            others = np.arange(len(self.sites)) != place
            left = SiteEstimates(observed.estimates[others], observed.covariances[others], observed.known[others])
            if not left.known.any(axis=0).all():
                text = "alone has a coefficient, which the others say nothing of"
                raise InputError(site, text, "analyse the coefficients that several have", "E-NEEDED")
            names = tuple(name for name in self.sites if name != site)
            found[site] = _analysis(
                names, self.coefficients, left, self.method, self.interval, self.is_diagonal, self.level
            )
        return found

    def regress(self, moderators: Any, coefficient: str | None = None) -> MetaRegression:
        """Return how an effect changes with moderators of the sites, such as their latitude or year.

        Parameters
        ----------
        moderators : mapping of str to mapping, or table
            Numbers by name and site, ``{"latitude": {"lund": 55.7, ...}}`` or the other way round, a Series by site,
            or a table with a column ``site`` or with sites as its index.
        coefficient : str, optional
            The coefficient that is the effect. Default: the only one.

        Raises
        ------
        InputError
            For moderators that some site lacks, or as many as there are sites.
        """
        if coefficient not in (self.coefficients if len(self.coefficients) > 1 else (None, *self.coefficients)):
            known_names = ", ".join(self.coefficients[:8])
            raise OptionError("coefficient", f"expected one of {known_names}, found {coefficient!r}")
        number = 0 if coefficient is None else self.coefficients.index(coefficient)
        known = np.flatnonzero(~np.isnan(self.estimates[:, number]))
        sites, effects = [self.sites[site] for site in known], self.estimates[known, number]
        variances = self.covariances[known, number, number]
        return regress(sites, effects, variances, moderators, self.interval, self.level, self.method)

    @property
    def _observed(self) -> SiteEstimates:
        """What sites estimated, 0 where they lack a coefficient."""
        known = ~np.isnan(self.estimates)
        return SiteEstimates(np.nan_to_num(self.estimates), np.nan_to_num(self.covariances), known)

    def _headline(self) -> str:
        test, coefficients = self.heterogeneity, format_count(len(self.coefficients), "coefficient")
        return (
            f"{len(self.sites)} sites, {coefficients}, {self.method}, Q = {test.q:.4g} on {test.degrees_of_freedom},"
            f" I2 = {100 * test.i2:.0f} %"
        )

    def _facts(self) -> dict[str, object | None]:
        effects = [
            f"{shorten(name, 24)} {self.random.mean[c]:.4g} ({_range(self.random.intervals[c])})"
            for c, name in enumerate(self.coefficients)
        ]
        return {
            "": self.verdict.text,
            "to do": self.verdict.remedy,
            "random effects": names_in_line(effects, 70),
            "sites": names_in_line(self.sites),
        }

    def _charts(self) -> dict[str, Chart | str]:
        charts: dict[str, Chart | str] = {}
        for kind, chart in (("forest", self._forest), ("funnel", self._funnel)):
            for number, name in enumerate(self.coefficients):
                charts[f"{kind} {name}" if len(self.coefficients) > 1 else kind] = chart(number)
        return charts

    def _funnel(self, number: int) -> Chart:
        """Return what draws the funnel of one coefficient: estimates over their standard errors."""
        known = np.flatnonzero(~np.isnan(self.estimates[:, number]))
        return partial(
            draw_funnel,
            names=[self.sites[site] for site in known],
            means=self.estimates[known, number],
            errors=np.sqrt(self.covariances[known, number, number]),
            centre=float(self.fixed.mean[number]),
            quantile=float(ndtri(0.5 + self.level / 2.0)),
            title=f"{self.coefficients[number]}: funnel of {100 * self.level:g} % about the fixed effect",
        )

    def _forest(self, number: int) -> Chart:
        """Return what draws the forest of one coefficient: its sites, and the pooled effects below."""
        known = np.flatnonzero(~np.isnan(self.estimates[:, number]))
        means = self.estimates[known, number]
        margins = float(ndtri(0.5 + self.level / 2.0)) * np.sqrt(self.covariances[known, number, number])
        pooled = (self.random, self.fixed)
        return partial(
            draw_intervals,
            names=["random effect", "fixed effect", *(self.sites[site] for site in known)],
            means=np.append([effects.mean[number] for effects in pooled], means),
            intervals=np.concatenate(
                [
                    [effects.intervals[number] for effects in pooled],
                    np.stack([means - margins, means + margins], axis=1),
                ]
            ),
            title=f"{self.coefficients[number]}, {100 * self.level:g} % intervals",
            marked=[True, True, *(False for _ in known)],
        )

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each coefficient: random and fixed effects with intervals, tau^2, I^2, prediction."""
        return {
            "coefficient": list(self.coefficients),
            "random": self.random.mean.tolist(),
            "random low": self.random.intervals[:, 0].tolist(),
            "random high": self.random.intervals[:, 1].tolist(),
            "tau2": self.tau2.tolist(),
            "I2": self.i2.tolist(),
            "prediction low": self.prediction[:, 0].tolist(),
            "prediction high": self.prediction[:, 1].tolist(),
            "fixed": self.fixed.mean.tolist(),
            "fixed low": self.fixed.intervals[:, 0].tolist(),
            "fixed high": self.fixed.intervals[:, 1].tolist(),
        }

    def summary(self) -> str:
        """Return the verdict and a table of coefficients: random and fixed effects, tau^2, I^2 and prediction."""
        heads = ["coefficient", "random", "interval", "tau2", "I2", "prediction", "fixed", "interval"]
        rows = [
            [
                printable(name)[:30],
                f"{self.random.mean[c]:.4g}",
                _range(self.random.intervals[c]),
                f"{self.tau2[c]:.4g}",
                f"{100 * self.i2[c]:.0f} %",
                _range(self.prediction[c]),
                f"{self.fixed.mean[c]:.4g}",
                _range(self.fixed.intervals[c]),
            ]
            for c, name in enumerate(self.coefficients)
        ]
        widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [heads, *rows]
        ]
        remedy = [f"to do: {self.verdict.remedy}"] if self.verdict.remedy else []
        made = f"{len(self.sites)} sites, {self.method}, {self.interval} intervals at {100 * self.level:g} %"
        return "\n".join([self.verdict.text, *remedy, made, *lines])

    def report(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a page with a forest plot of every coefficient, whole or not at all: one HTML file, nothing fetched.

        With `overwrite` a file that is there is replaced also where this library did not write it.

        Raises
        ------
        InputError
            When the path cannot be written.
        """
        refuse_to_replace(path, overwrite)
        from consilience.estimators.meta_analysis.report import write_page  # here, so that pooling needs no pages

        write_page(Path(path), self)


def _range(ends: Array) -> str:
    return "-" if np.isnan(ends).any() else f"{ends[0]:.4g} to {ends[1]:.4g}"


def _chosen_method(method: object) -> Method:
    """Return a method by its name, or by the short one; raises OptionError for any other."""
    full = _SHORT_METHODS.get(str(method), method)
    for known in get_args(Method):
        if full == known:
            return known
    raise OptionError("method", f"expected one of {', '.join(get_args(Method))}, found {method!r}")


def _refuse_options(interval: str, diagonal: object, level: Any) -> None:
    """Raise OptionError for options that have another value than they may have."""
    if interval not in get_args(Interval):
        raise OptionError("interval", f"expected one of {', '.join(get_args(Interval))}, found {interval!r}")
    if not (is_number(level) and 0.0 < level < 1.0):
        raise OptionError("level", f"expected a probability between 0 and 1, found {level!r}")
    if diagonal is not None and not isinstance(diagonal, bool):
        raise OptionError("diagonal", f"expected True or False, found {diagonal!r}")


def meta_analysis(
    estimates: Mapping[str, Any] | str | Path | Any,
    *,
    method: str = "reml",
    interval: Interval = "hartung_knapp",
    diagonal: bool | None = None,
    level: float = LEVEL,
    names: Sequence[str] | None = None,
    measure: Measure = "log_odds_ratio",
) -> MetaAnalysis:
    """Return the fixed and random effects of estimates of several sites.

    Parameters
    ----------
    estimates : mapping of str to (estimate, covariance), table, or its path
        By site, a number and its variance, or a vector (p,) and its covariance (p, p). An estimate may be a mapping
        or Series by names of coefficients, which are matched by name, and sites may lack some; or a fitted result with
        ``params`` and ``cov_params()``, as of statsmodels, robust covariances too. Or two by two counts, a list or an
        array, treated first: ``[[events, others], [events, others]]``. Or a table (pandas, polars, Arrow, the path of
        a CSV, TSV or Parquet file) with columns site, estimate, se or variance, and coefficient where there are
        several, which are then taken as independent; columns may be called as in metafor (yi, vi, sei, slab; ai, bi,
        ci, di) and meta.
    method : {"reml", "dersimonian_laird", "paule_mandel", "fixed"}, optional
        How the covariance T between sites is estimated; "dl" and "pm" for short. The second and third
        are of each coefficient alone. Default: restricted maximum likelihood.
    interval : {"hartung_knapp", "truncated_hartung_knapp", "normal"}, optional
        How intervals of random effects are made; see `Interval`. Default: Hartung and Knapp's.
    diagonal : bool, optional
        Whether coefficients vary independently between sites. Default: where the estimates are not twice as many as
        the entries of T, and for moments always.
    level : float, optional
        Probability of the intervals. Default: 0.95.
    names : sequence of str, optional
        Names of the coefficients of vectors without.
    measure : {"log_odds_ratio", "log_risk_ratio", "risk_difference"}, optional
        The effect of two by two counts.

    Raises
    ------
    InputError
        For fewer than two sites, names that do not agree, and covariances that are none.
    OptionError
        For unknown methods.

    Examples
    --------
    >>> analysis = meta_analysis({"lund": (0.10, 0.01), "oslo": (0.30, 0.01), "riga": (0.35, 0.02)}, method="dl")
    >>> analysis
    MetaAnalysis: 3 sites, 1 coefficient, dersimonian_laird, Q = 2.9 on 2, I2 = 31 %
      no sign that coefficients differ between sites (Q = 2.9 on 2 degrees of freedom, p = 0.23, I2 =
        31 %). With 3 sites tau2 is hardly estimable: read its intervals as rough.
      random effects: effect 0.235 (-0.09393 to 0.564)
      sites: lund, oslo, riga
    >>> analysis.random.mean.round(3), analysis.tau2.round(4)
    (array([0.235]), array([0.0056]))
    """
    chosen = _chosen_method(method)
    _refuse_options(interval, diagonal, level)
    sites, coefficients, observed = read_estimates(estimates, names, checked_measure(measure))
    return _analysis(sites, coefficients, observed, chosen, interval, diagonal, float(level))


def _analysis(
    sites: tuple[str, ...],
    coefficients: tuple[str, ...],
    observed: SiteEstimates,
    method: Method,
    interval: str,
    diagonal: bool | None,
    level: float,
) -> MetaAnalysis:
    """Return the analysis of estimates that were read, by options that were checked."""
    p = len(coefficients)
    by_moments = method in ("dersimonian_laird", "paule_mandel")
    if by_moments and p > 1 and diagonal is False:
        raise OptionError("diagonal", "is True of moments, which are of each coefficient alone; use `method='reml'`")
    if diagonal is None:  # T has p (p + 1) / 2 entries
        diagonal = by_moments or observed.n_free < p * (p + 1)
    between, iterations = between_site_covariance(observed, method, diagonal=diagonal)
    fixed, pooled = pool(observed, np.zeros((p, p))), pool(observed, between)
    fixed_effects = normal_effects(fixed.mean, fixed.covariance, level)
    random = random_effects(pooled.mean, pooled.covariance, pooled.squares, observed.n_free, interval, level)
    per_coefficient = [observed.column(number) for number in range(p)]
    is_missing = ~observed.known
    precision = np.where(is_missing, 0.0, 1.0 / np.where(is_missing, 1.0, _diagonal(observed) + np.diag(between)))
    overall, alone = Heterogeneity.of(observed), tuple(map(Heterogeneity.of, per_coefficient))
    return MetaAnalysis(
        sites,
        coefficients,
        np.where(is_missing, np.nan, observed.estimates),
        np.where(is_missing[:, :, None] | is_missing[:, None, :], np.nan, observed.covariances),
        fixed_effects,
        random,
        between,
        _prediction(random, between, observed.known.sum(axis=0), level),
        overall,
        alone,
        precision / precision.sum(axis=0),
        method,
        interval,
        bool(diagonal) or p == 1,
        float(level),
        iterations,
        _judge(overall, len(sites), coefficients, alone, [coefficients[c] for c in _narrower(random, fixed_effects)]),
    )


def _diagonal(sites: SiteEstimates) -> Array:
    variances: Array = np.einsum("kii->ki", sites.covariances)
    return variances


def _prediction(random: Effects, between: Array, n_sites: Array, level: float) -> Array:
    """Return intervals of another site's coefficients (p, 2); nan for those that fewer than 3 sites have."""
    freedom = np.where(n_sites >= 3, n_sites - 2, np.nan)
    margin = stdtrit(freedom, 0.5 + level / 2.0) * np.sqrt(np.diag(between) + np.diag(random.covariance))
    return np.stack([random.mean - margin, random.mean + margin], axis=1)


def _narrower(random: Effects, fixed: Effects) -> list[int]:
    """Return the coefficients whose interval is narrower under random effects, by more than rounding.

    Hartung and Knapp's q below one does that where Student's quantile does not outweigh it: estimates scatter less than
    their standard errors say, by chance or because these are too large. Of equal estimates the interval is a point.
    """
    widths, fixed_widths = (np.diff(effects.intervals, axis=1)[:, 0] for effects in (random, fixed))
    return np.flatnonzero(widths < (1.0 - _ROUNDING) * fixed_widths).tolist()


def _judge(
    overall: Heterogeneity,
    n_sites: int,
    coefficients: Sequence[str],
    each: Sequence[Heterogeneity],
    narrower: Sequence[str],
) -> Verdict:
    """Return whether coefficients differ between sites: all together, or one of them after Bonferroni."""
    figures = (
        f"Q = {overall.q:.4g} on {overall.degrees_of_freedom} degrees of freedom, p = {overall.p_value:.2g},"
        f" I2 = {100 * overall.i2:.0f} %"
    )
    more, remedies = "", []
    if n_sites < FEW_SITES:
        more += f" With {n_sites} sites tau2 is hardly estimable: read its intervals as rough."
    if narrower:
        plural = "interval of {} is" if len(narrower) == 1 else "intervals of {} are"
        names = plural.format(names_in_line([*map(printable, narrower)], 30))
        more += f" Hartung-Knapp {names} narrower than the fixed effect's: too narrow where sites agree by chance."
        remedies.append('take `interval="truncated_hartung_knapp"`, which is never narrower')
    if not (overall.is_marked or any(one.p_value < SIGNIFICANCE / len(each) for one in each)):
        text = f"no sign that coefficients differ between sites ({figures}).{more}"
        return Verdict("homogeneous", text, remedy="; ".join(remedies) or None)
    worst = max(range(len(each)), key=lambda c: each[c].i2)
    most = f", most of all {printable(coefficients[worst])}" if len(each) > 1 else ""
    return Verdict(
        "heterogeneous",
        f"coefficients differ between sites{most} ({figures}): the fixed effect's intervals are too narrow.{more}",
        remedy="; ".join(["read the random effects, and the prediction interval for another site", *remedies]),
    )

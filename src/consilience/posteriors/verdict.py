"""The verdict on fused posteriors: what they lose against keeping all sites' models, and whether they harm.

Of mixtures, on draws x of all sites' mixtures side by side, c = sum_j s_j p_j with s_j the sites' shares of the
observations, and at the densities of the posterior means (no data are needed, and no variational bound enters):

    loss of the fused mixture f        VL   = E_{x ~ c}[log c(x) - log f(x)]
    loss of the mixture of site j      VL_j = E_{x ~ c}[log c(x) - log p_j(x)]

in nats per observation. The fusion is harmless if f loses less than every site's own mixture by two standard errors of
the paired difference and the noise below, harmful if some site's own loses less than f by as much, and neither is known
otherwise. The error is that of the draws and of the observations behind c: a mean over so many of them would have it.
It judges by what the sites say of themselves: where they lie, or their fits went wrong together, so does the verdict.

Sites of few observations have fitted their noise, which c keeps and f averages out, and VL counts that as a loss. With
p parameters of a component, c and f differ by about (L - G) p / N nats of it, N observations in all, if fits were by
maximum likelihood, and by less under priors; no loss and no difference counts before it exceeds a quarter of that.

Copies of a component that state a prior have it once each, a Bayesian average once in all; where f is one, each of n
copies is judged with 1/n of it, so that sites are not the wider for being small.

Topics have no density of documents in closed form: f, c and p_j are scored on the held-out words of virtual documents
(``evidence.virtual_documents``), in nats per word, with the numbers of topics that lose no more than each of several
losses. Of other distributions of categories, by the joint convexity of the divergence,

    VL <= sum_l w_l KL(p_l || f_g(l))            (Hershey and Olsen 2007, their variational bound with hard couplings)

which is never a warning. Chains are judged by the mixture of their states' emissions,
without their order, so that harm is not known; of centres by sums of squares (``verdict_of_kinds``). Other families
have no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.details import LeftOut, Status, why_left_out
from consilience.core.robust import weak_spot
from consilience.core.verdict import FUSED, Verdict
from consilience.drawing.words import all_of, first_names, shorten
from consilience.families.evidence import EvidenceFamily
from consilience.families.linalg import variances_of
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.virtual_documents import (
    N_TOKENS,
    VirtualDocuments,
    is_topics,
    virtual_documents_of,
)
from consilience.posteriors.evidence.virtual_loss import (
    VirtualLoss,
    mean_and_error,
    observation_weights,
    virtual_loss_of,
)
from consilience.posteriors.posterior import Posterior, shares_of
from consilience.posteriors.robust.minority import take_rows
from consilience.posteriors.verdict_of_kinds import Known, known_of_centres, known_of_chain

N_ERRORS = 2.0
"""Standard errors by which a difference is known."""
ROUNDING = 1e-9
"""Nats below which no difference is one: copies of one model differ by rounding."""
N_LOSS_ERRORS = 4.0
"""Standard errors below which a loss is stated as a bound."""
LEAST_STATED_LOSS = 0.02
"""That bound, in nats per observation, unless the errors are greater: about four errors of 2,000 draws."""
SMALL_LOSS, GREAT_LOSS = 0.05, 0.3
"""Nats per observation from which on a loss matters, and is a warning: conventions. Of simulated ensembles that were
matched rightly, with sites that differ by at most 0.3 standard deviations of a component, all lost at most 0.05, and of
collapsed ones all at least 0.35; experiments/battery judges them on others."""
HELD_OUT_RATIO, HELD_OUT_NATS = 1.5, 0.1
"""Times the loss on draws, and nats more, that held-out rows seldom lose: models describe their own draws better than
real rows. Set on the tune half of experiments/battery; it holds for 98 of 100 fusions of the other half and of sets."""
MIN_SHARED_MASS = 0.25
"""Share of the observations in components of several sites below which sites share nothing. Chosen by hand."""
MAX_JUDGED_ROWS = 5000
"""Components up to which a verdict is computed. Chosen by hand for its cost."""
N_FURTHER_DRAWS, MAX_FURTHER_ROWS = 20_000, 1000
"""Draws where harm is not known from 2,000, and components up to which they are taken: for their cost."""
MAX_DEVIATIONS = 1e4
"""Deviations of the usual component's place, beyond which one is named whatever else is known: a column in other units,
or a mistake. A round refuses it by the same number, since sums with it lose their digits."""
MAX_NAMED_SITES = 3
"""Outliers that the sentence names."""

WORDS_BOUND = "bound on the virtual loss"
"""How the criterion of distributions of categories begins."""
VIRTUAL_WORDS = "virtual loss, nats per word"
"""The criterion of topics."""

HARM_IS_UNKNOWN = "whether the fused model is no worse than the best of the models is not known"


@dataclass(frozen=True, eq=False)
class Losses:
    """What a fused model and every site's own lose against all side by side."""

    fused: float  # of the fused model, in units of the criterion
    error: float  # its standard error; zero for a bound
    criterion: str  # what the losses are
    sites: Array  # of each site's own model (J,); empty where not known
    gains: Array  # the same less that of the fused one, by the same draws (J,)
    gain_errors: Array  # their standard errors (J,)
    largest: int  # component of the stack that most is lost of
    noise: float = 0.0  # what of the loss may be the noise of local fits

    @property
    def matters(self) -> bool:
        """Whether more is lost than the noise of local fits may be."""
        return self.error > 0 and self.fused - self.noise > SMALL_LOSS

    @property
    def harmless(self) -> bool | None:
        """Whether the fused model loses less than every site's own, by two errors and the noise; None if not known."""
        if not self.gains.size:
            return None
        margins = np.maximum(N_ERRORS * self.gain_errors + self.noise, ROUNDING)
        if np.all(self.gains > margins):
            return True
        return False if np.any(self.gains < -margins) else None

    @property
    def unit(self) -> str:
        """What nats are counted by."""
        return "word" if self.criterion.endswith("word") else "observation"

    @property
    def best_site(self) -> int:
        """The site whose own model loses least."""
        return int(np.argmin(self.sites))

    def candidates(self, names: Sequence[str]) -> dict[str, float]:
        """Return the losses of the sites' own models and of the fused one, by name; empty where those are not known."""
        return {**dict(zip(names, self.sites.tolist(), strict=True)), FUSED: self.fused} if self.sites.size else {}


def with_one_prior(ensemble: Ensemble, labels: Labels) -> Ensemble:
    """Return the models with 1/n of its prior in each of the n copies of a component: one in total.

    So much a Bayesian average has. With their priors whole, components of small sites are wider than their data, and a
    fused one that is right would lose for not being. A component left out (label -1) keeps its prior. Models stay as
    they are where one lacks a prior, or where what is left would be no posterior.
    """
    family, priors = ensemble.family, [p.prior for p in ensemble.unordered if p.prior is not None]
    if len(priors) < ensemble.n_sites or not isinstance(family, EvidenceFamily):
        return ensemble
    is_in = labels >= 0
    n_copies = np.ones(len(labels))
    n_copies[is_in] = np.bincount(labels[is_in])[labels[is_in]]
    surplus = (1.0 - 1.0 / n_copies)[:, None] * (np.stack(priors)[ensemble.owner] - family.flat)  # (L, P)
    natural = ensemble.natural - surplus
    if family.check(natural):
        return ensemble
    rows = np.split(natural, ensemble.offsets[1:-1])
    posteriors = [replace(site, natural=own) for site, own in zip(ensemble.posteriors, rows, strict=True)]
    return replace(ensemble, posteriors=tuple(posteriors))


def losses_of(ensemble: Ensemble, fused: Posterior, labels: Labels, *, is_mixture: bool) -> Losses | None:
    """Return what a fused model loses; None for families without a loss, or for too many components.

    `labels` (L,) are the fused component of each of the models'; `is_mixture` says whether these are mixtures of their
    components, so that the loss of a site's own means something.
    """
    if len(ensemble.natural) > MAX_JUDGED_ROWS:
        return None
    mass = observation_weights(ensemble)
    if ensemble.family.describes_data:
        loss, densities = virtual_loss_of(ensemble), fused.family.plug_in(fused.natural)
        assert loss is not None  # noqa: S101  (families that describe data have densities)
        assert densities is not None  # noqa: S101
        losses = _mixture_losses(loss, ensemble, (*densities, fused.shares), is_mixture)
        if is_mixture and losses.harmless is None and len(mass) <= MAX_FURTHER_ROWS:
            loss = replace(loss, n_draws=N_FURTHER_DRAWS)
            losses = _mixture_losses(loss, ensemble, (*densities, fused.shares), is_mixture)
        return losses
    documents = virtual_documents_of(ensemble)
    if documents is not None:
        return _topic_losses(documents, ensemble, fused, labels)
    local, merged = ensemble.family.mean_probabilities(ensemble.natural), fused.family.mean_probabilities(fused.natural)
    if local is None or merged is None:
        return None
    by_row = shares_of(mass) * _categorical_divergences(local, merged, labels)
    nothing = np.zeros(0)
    criterion = f"{WORDS_BOUND}, nats per word"
    return Losses(float(by_row.sum()), 0.0, criterion, nothing, nothing, nothing, int(np.argmax(by_row)))


def _mixture_losses(
    loss: VirtualLoss, ensemble: Ensemble, fused: tuple[Array, Array, Array], is_mixture: bool
) -> Losses:
    """Return the losses of a mixture (means, covariances, weights) and of every site's, by the draws of `loss`.

    Errors of differences are those of the draws, and those that a mean over the observations behind c has: no more of
    them is known of the population.
    """
    counts = ensemble.column("counts")
    n_observations = np.inf if counts is None else max(float(counts.sum()), 1.0)
    by_draw = loss.of_mixture(*fused)
    mean, error = mean_and_error(by_draw)
    by_row = np.bincount(loss.rows_of_draws, weights=by_draw)
    sites = gains = errors = np.zeros(0)
    if is_mixture:
        of_sites = loss.of_sites(
            ensemble.offsets, np.concatenate([site.shares for site in ensemble.posteriors])
        )  # (J, n)
        differences = of_sites - by_draw
        sites, gains = of_sites.mean(axis=1), differences.mean(axis=1)
        errors = differences.std(axis=1, ddof=1) * (1.0 / loss.n_draws + 1.0 / n_observations) ** 0.5
    noise = max(len(loss.means) - len(fused[0]), 0) * loss.noise_of_component(n_observations)
    criterion = "virtual loss, nats per observation"
    return Losses(mean, error, criterion, sites, gains, errors, int(np.argmax(by_row)), noise)


def _topic_losses(documents: VirtualDocuments, ensemble: Ensemble, fused: Posterior, labels: Labels) -> Losses:
    """Return the losses of fused topics and of every site's own, on the same virtual documents.

    Errors of differences are those of the documents, and those of as many documents as the sites' tokens make.
    """
    by_document = documents.by_document(labels, fused.natural + 1.0)
    mean, error = mean_and_error(by_document)
    place_of_site = np.argsort(ensemble.owner[documents.order[documents.offsets[:-1]]])  # documents' order of sites
    of_sites = documents.of_sites(place_of_site)  # (J, n)
    differences, n_documents = of_sites - by_document, of_sites.shape[1]
    in_sites = max(float(documents.totals.sum()) / N_TOKENS, 1.0)
    errors = differences.std(axis=1, ddof=1) * (1.0 / n_documents + 1.0 / in_sites) ** 0.5
    largest = int(np.argmax(documents.by_topic(by_document)))
    return Losses(mean, error, VIRTUAL_WORDS, of_sites.mean(axis=1), differences.mean(axis=1), errors, largest)


def _categorical_divergences(local: Array, merged: Array, labels: Labels) -> Array:
    """Return KL(p_l || f_g(l)) of probabilities (L, V) and (G, V); of a row in no group, to the nearest one."""
    logarithms = np.log(merged)
    entropies = np.sum(local * np.log(local), axis=1)
    divergences = entropies - np.einsum("lv,lv->l", local, logarithms[np.maximum(labels, 0)])
    out = np.flatnonzero(labels < 0)
    divergences[out] = entropies[out] - (local[out] @ logarithms.T).max(axis=1)
    return np.maximum(divergences, 0.0)


def shared_mass(ensemble: Ensemble, labels: Labels) -> float:
    """Return the share of the observations in fused components that several sites have."""
    mass = shares_of(observation_weights(ensemble))
    is_in = labels >= 0
    pairs = np.unique(np.stack([labels[is_in], ensemble.owner[is_in]]), axis=1)
    n_sites = np.bincount(pairs[0], minlength=1)  # of each component (G,)
    return float(mass[is_in][n_sites[labels[is_in]] > 1].sum())


def judge_fusion(
    ensemble: Ensemble,
    labels: Labels,
    fused: Posterior,
    details: PosteriorDetails,
    status: Status,
    *,
    is_mixture: bool,
    matches: bool,
    trusts_sites: bool,
    n_sites: int | None = None,
    has_means: bool = False,
) -> Verdict:
    """Return the verdict on a fusion of posteriors; see the module.

    `labels` (L,) are the fused component of each of the models', -1 for one left out. `is_mixture` says whether these
    are mixtures of their components, `matches` whether the method says who is who, else all components are kept side by
    side. Unless it `trusts_sites`, what they say of themselves is not believed, and harm is not known. `n_sites` is
    their number where the models are a sample of them; that there is no harm is then not known of the others.
    `has_means` says whether components are centres that are the means of their rows.
    """
    # In an order of the contents, so that neither who came first nor names change a bit of it.
    canonical, origin = ensemble.canonical(relabel=True)
    is_sample = n_sites is not None and n_sites > canonical.n_sites
    distant = _distant_components(canonical)
    judged, labels, origin = _judged_models(canonical, labels[origin], origin, details, trusts_sites=trusts_sites)
    losses = losses_of(judged, fused, labels, is_mixture=is_mixture)
    harmless, measured = None, dict[str, Any]()
    if losses is not None:
        harmless = losses.harmless if trusts_sites else None
        measured = {"candidates": losses.candidates(judged.names), "criterion": losses.criterion, "loss": losses.fused}
    share = shared_mass(judged, labels) if matches else 1.0
    # Harm has the remedy already, and who trusts no site is not told to keep all that they sent.
    is_advised = trusts_sites and harmless is not False
    found = _harm(losses, judged, harmless) + _findings(share, distant, details, status)
    found += _lossy(losses, ensemble, origin, details, is_advised=is_advised)
    opening = _opening(losses, judged, fused, trusts_sites=trusts_sites)
    known = _known_of_kind(losses, canonical, fused, details, has_means=has_means) if trusts_sites else None
    if known is not None:
        opening = known.text
    if is_sample:
        opening = f"of a sample of {judged.n_sites} of the {n_sites} sites: {opening}"
        harmless = None if harmless else harmless
    unseen = [weak_spot(robust)] if (robust := details.get("robust")) else []
    clauses = [clause for _, clause, _ in found] + [_doubts_of_number(details)]
    text = "; ".join([opening, *filter(None, clauses), *unseen])
    return Verdict(
        code=found[0][0] if found else "fine" if losses is not None else status.name.lower(),
        text=f"{text[0].upper()}{text[1:]}.",
        harmless=harmless,
        remedy="; ".join(dict.fromkeys(filter(None, (remedy for _, _, remedy in found)))) or None,
        standing=(known.standing or None) if known is not None else None,
        **measured,
    )


def _judged_models(
    ensemble: Ensemble, labels: Labels, origin: Labels, details: PosteriorDetails, *, trusts_sites: bool
) -> tuple[Ensemble, Labels, Labels]:
    """Return the models that are judged, the labels of their components, and which of the models given these are."""
    if not trusts_sites:  # what was left out may be fabricated: it is no loss, and nobody is advised to keep it
        averaged = np.flatnonzero(labels >= 0)
        ensemble, labels, origin = take_rows(ensemble, averaged), labels[averaged], origin[averaged]
    # Virtual documents are of tokens beyond each prior as it is stated.
    if details.get("average", {}).get("name") != "barycenter" and not is_topics(
        ensemble
    ):  # a model that requests went on from has one prior, too
        ensemble = with_one_prior(ensemble, labels)
    return ensemble, labels, origin


Finding = tuple[str, str, str]
"""Code, clause and remedy of something that speaks against a fusion."""


def _harm(losses: Losses | None, ensemble: Ensemble, harmless: bool | None) -> list[Finding]:
    """Return that some site's own model is better than the fused one, where that is known."""
    if losses is None or harmless is not False:
        return []
    name = shorten(ensemble.names[losses.best_site])
    return [("harm", "", f"use the model of {name}, or keep all with `method='concatenate'`")]


def _findings(
    share: float, distant: Sequence[tuple[str, float]], details: PosteriorDetails, status: Status
) -> list[Finding]:
    """Return what speaks against a fusion besides its losses, the gravest first.

    `share` of the observations are in components that several sites have; `distant` sites have components so far from
    all.
    """
    findings: list[Finding] = []
    if share < MIN_SHARED_MASS:
        findings.append(_nothing_shared(share))
    if details.get("number", {}).get("nothing_separates"):
        findings.append(
            (
                "nothing_separates",
                "the components of a site lie so close together that one for the whole site explains its data better",
                "fit sites one component each, or more observations if there are groups",
            )
        )
    # Sites of which single components were left out are told of in the details; they are no outliers for that.
    outliers = [
        shorten(str(outlier["name"])) for outlier in details.get("outliers", []) if outlier.get("whole_site", True)
    ]
    if outliers:
        findings.append(_outliers(outliers))
    if distant and not outliers:
        findings.append(_distant(distant))
    if records := details.get("robust", {}).get("left_out", []):
        findings.append(_left_out(records))
    if status is not Status.CONVERGED:
        ending, _, remedy = status.value.partition("; ")
        findings.append((status.name.lower(), ending, remedy))
    return findings


def _nats(value: float) -> str:
    """Return a number of nats in two digits, or as a whole number."""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


def _opening(losses: Losses | None, ensemble: Ensemble, fused: Posterior, *, trusts_sites: bool) -> str:
    """Return what is known of harm, and what is lost."""
    if losses is None:
        return HARM_IS_UNKNOWN
    lost = _lost(losses, ensemble.n_sites)
    if losses.unit == "observation":
        lost += f", on real rows seldom more than {_nats(held_out_bound(losses.fused))}"
    if not losses.sites.size:
        return f"{HARM_IS_UNKNOWN}; the fused model {lost}"
    if not trusts_sites:
        return f"{HARM_IS_UNKNOWN}, for what sites say of themselves is not trusted; the fused model {lost}"
    best = losses.best_site  # what f is compared with, unless it is better than all
    best_site = shorten(ensemble.names[best])
    gain, error = float(losses.gains[best]), float(losses.gain_errors[best])
    if losses.harmless:
        nearest = int(losses.gains.argmin())
        least, doubt = float(losses.gains[nearest]), N_ERRORS * float(losses.gain_errors[nearest]) + losses.noise
        components = "1 component" if fused.n_components == 1 else f"{fused.n_components} components"
        return (
            f"one model of {components} describes {all_of(ensemble.n_sites, 'sites')} together better than any"
            f" site's own does: than that of {shorten(ensemble.names[nearest])}, the nearest, by {_nats(least)} ±"
            f" {_nats(doubt)} nats per {losses.unit} drawn from their models; it {lost}"
        )
    if losses.harmless is False:
        return (
            f"the model of {best_site} alone describes all sites together better than the fused one does,"
            f" by {_nats(-gain)} nats per {losses.unit}"
        )
    if abs(gain) + N_ERRORS * error + losses.noise < LEAST_STATED_LOSS:
        return (
            f"the fused model describes all sites together as well as that of {best_site} alone does, to"
            f" within {LEAST_STATED_LOSS} nats per {losses.unit}, and {lost}"
        )
    return (
        f"whether the fused model describes all sites together better than that of {best_site} alone is not"
        f" known (by {_nats(gain)} ± {_nats(N_ERRORS * error + losses.noise)} nats per {losses.unit}); it {lost}"
    )


def _known_of_kind(
    losses: Losses | None, ensemble: Ensemble, fused: Posterior, details: PosteriorDetails, *, has_means: bool
) -> Known | None:
    """Return what is known of centres and of chains; None for all others, and where nothing is."""
    if ensemble.is_chain:
        lost, unit = (None, "") if losses is None else (_lost(losses, ensemble.n_sites), losses.unit)
        return known_of_chain(lost, unit)
    if losses is not None or details.get("withheld"):  # sums of squares are of all rows of a site
        return None
    return known_of_centres(ensemble, fused, has_means=has_means)


def _lost(losses: Losses, n_sites: int) -> str:
    """Return what the fused model loses, in words."""
    against = f"against keeping {all_of(n_sites)}"
    if losses.criterion.startswith(WORDS_BOUND):
        return f"loses at most {_nats(losses.fused)} nats per word {against}"
    if losses.fused < N_LOSS_ERRORS * losses.error:
        return f"loses less than {max(LEAST_STATED_LOSS, N_LOSS_ERRORS * losses.error):.2g} {against}"
    if not losses.matters and losses.fused > SMALL_LOSS:
        return f"loses {_nats(losses.fused)} {against}, which may be the noise of their own fits"
    return f"loses {_nats(losses.fused)} {against}"


def held_out_bound(loss: float) -> float:
    """Return what a fused model seldom loses more than on held-out rows, given its loss on draws, both in nats."""
    return HELD_OUT_RATIO * loss + HELD_OUT_NATS


def _doubts_of_number(details: PosteriorDetails) -> str:
    """Return what no criterion from parameters decides of the number of components; empty where one does."""
    number = details.get("number", {})
    if curve := number.get("topics_at_loss"):
        losses, numbers = ", ".join(curve), ", ".join(map(str, curve.values()))
        return (
            f"no evidence decides the number of topics: {numbers} lose at most {losses} nats per word against the best"
            " number"
        )
    if number.get("linked"):
        return (
            "evidence would have merged more of them, which loses"
            f" {_nats(number['virtual_loss']['evidence'])}: rows that sites held out can tell (`held_out=`, in a round"
            " `--then choose`)"
        )
    return ""


def _nothing_shared(share: float) -> Finding:
    held = "no component is" if share == 0 else f"only {100 * share:.0f} % of the observations are in components"
    return (
        "nothing_shared",
        f"sites share {'nothing' if share == 0 else 'hardly anything'}: {held} of several sites, and the others are"
        " kept side by side",
        "see that all sites have the same columns in the same units",
    )


def _outliers(names: Sequence[str]) -> Finding:
    named = first_names(names, MAX_NAMED_SITES)
    be = "is an outlier" if len(names) == 1 else "are outliers"
    return "outlier", f"{named} {be}", f"look at {named}, or leave {'it' if len(names) == 1 else 'them'} out"


def _distant_components(ensemble: Ensemble) -> list[tuple[str, float]]:
    """Return the sites that have a component absurdly far from the usual one, and how many deviations at most.

    Places are compared with their median in each column, in units of the median variance and of the spread of places.
    """
    if not ensemble.family.describes_data:
        return []
    densities = ensemble.family.plug_in(ensemble.natural)
    assert densities is not None  # noqa: S101  (families that describe data have densities)
    means, spreads = densities
    variances = variances_of(spreads)
    offsets = np.abs(means - np.median(means, axis=0))
    units = np.sqrt(np.median(variances, axis=0) + np.median(offsets, axis=0) ** 2)
    distances = (offsets / np.maximum(units, np.finfo(np.float64).tiny)).max(axis=1)  # (L,)
    is_far = distances > MAX_DEVIATIONS
    return [
        (shorten(ensemble.names[site]), float(distances[ensemble.owner == site].max()))
        for site in np.unique(ensemble.owner[is_far]).tolist()
    ]


def _distant(components: Sequence[tuple[str, float]]) -> Finding:
    """Return which sites have components absurdly far away."""
    shown = [f"{name} has a component {far:.1g} deviations away" for name, far in components]
    names = first_names([name for name, _ in components], MAX_NAMED_SITES)
    return "outlier", first_names(shown, MAX_NAMED_SITES), f"look at the units of {names}"


def _left_out(records: Sequence[LeftOut]) -> Finding:
    """Return which sites robust fusion left out, and why, of records of ``Judgement.details``."""
    shown = first_names([f"{record['model']} ({why_left_out(record)})" for record in records], MAX_NAMED_SITES)
    names = first_names([str(record["model"]) for record in records], MAX_NAMED_SITES)
    be = "was" if len(records) == 1 else "were"
    return "left_out", f"{shown} {be} left out", f"look at {names}, which do not fit with most"


def _lossy(
    losses: Losses | None, given: Ensemble, origin: Labels, details: PosteriorDetails, *, is_advised: bool
) -> list[Finding]:
    """Return the cause of a loss that matters: that sites differ, or the component that loses most.

    Components that were judged are rows `origin` (n,) of the models given.
    """
    if losses is None or not losses.matters:
        return []
    remedy = "`method='concatenate'` keeps all components"
    location = next(iter(details.get("heterogeneity", {}).values()), None)
    if losses.fused - losses.noise <= GREAT_LOSS:
        code, clause = "loses_little", "this is a little less than all models side by side know"
    elif location is not None and location >= 1.0:
        code = "sites_differ"
        clause = "sites differ by more than their components are wide, and the fused model is what they have in common"
    else:
        row = int(origin[losses.largest])
        site = int(given.owner[row])
        code = "loses"
        clause = f"most is lost of component {row - int(given.offsets[site])} of {shorten(given.names[site])}"
        remedy = (
            f"{remedy}, and a greater n_components more of them; which is best, rows that sites held out can tell"
            " (`held_out=`, in a round `--then choose`)"
        )
    return [(code, clause, remedy if is_advised else "")]

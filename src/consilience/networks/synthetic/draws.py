"""Synthetic inputs drawn from descriptions: a Gaussian of each site, or of each class of each site, or a site's texts.

With m, F and r the mean, the factor and the residual variances of a component (`Moments`), an input is

    x = m + F^T e1 + sqrt(r) e2,    e1, e2 standard normal,

in the shape of an input, clipped to the range that its site says; columns of whole numbers have values that it says
(`whole_columns`). Components are the sites, with probabilities n_j / N,
or the classes of the sites, with probabilities n_jc / N, or parts of these classes; the label c then travels with the
draw. There is never one Gaussian pooled over sites: where sites hold different classes, each one's is nearly a class's.

Images of which only means and variances are described are m + sqrt(r) times dead leaves of unit variance
(``dead_leaves``): independent pixels are like no image. Texts have a length from their site's histogram, and follow its
bigrams as a Markov chain; texts with labels have tokens of their class, independent of each other.

The number of draws of a component is that expected of it, rounded up or down by systematic sampling (Madow 1949): every
input is as likely to be of a component as under independent draws, and shares of components do not vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.checks import Array, Labels, is_count
from consilience.errors import InputError, OptionError, Problem, UnsupportedError
from consilience.networks.descriptions.description import Description, Moments, TokenCounts
from consilience.networks.descriptions.whole_columns import as_whole
from consilience.networks.synthetic.dead_leaves import dead_leaves

_NEEDED = {
    (True, True): "counts of tokens by class",
    (True, False): "token counts",
    (False, True): "moments by class",
    (False, False): "moments of the inputs",
}
"""What is drawn from, by whether inputs are texts and whether they are labelled."""

SMALLEST = float(np.finfo(np.float32).tiny) ** 0.5
"""Absolute value below which a drawn number is zero: its square is no normal number of single precision, with which a
processor takes sixty times as long. Rounding leaves such factors to columns that are constant, as pixels of a margin
are."""


@dataclass(frozen=True, eq=False)
class SyntheticInputs:
    """Inputs that were drawn from descriptions.

    Parameters
    ----------
    inputs : Tensor of shape (n, ...)
        Float32, or int64 for tokens.
    labels : Tensor of shape (n,), int64, or None
        Class that each was drawn from; None where they were drawn without.
    sites : Tensor of shape (n,), int64
        Number of the description that each was drawn from.
    missing_classes : tuple of str
        Names of the classes of which nothing could be drawn, since no site describes their inputs.
    missing_sites : tuple of str
        Names of the sites that do not say what was needed to draw from them.
    """

    inputs: Tensor
    labels: Tensor | None
    sites: Tensor
    missing_classes: tuple[str, ...] = ()
    missing_sites: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class _Component:
    """What inputs are drawn from."""

    site: int  # number of the description
    label: int  # number of the class; -1 without
    mass: float  # observations that it stands for
    moments: Moments | None  # of its inputs; None for texts
    tokens: TokenCounts | None  # of its texts


def draw_inputs(
    descriptions: Sequence[Description], count: int, rng: np.random.Generator | int = 0, *, labelled: bool = False
) -> SyntheticInputs:
    """Return inputs drawn from what sites say of theirs, in random order.

    Parameters
    ----------
    descriptions : sequence of Description
        Of the sites; their order changes no input.
    count : int
        Number of inputs.
    rng : numpy.random.Generator or int, optional
        Random generator, or its seed. Draws to fit on and draws to judge by must come from two (`draw_twice`).
        Default: 0.
    labelled : bool, optional
        Whether inputs are drawn from the moments by class, texts from the counts of tokens by class, and come with
        labels. A class of which a site says neither is drawn from the other sites that do, by their counts of it.
        Default: False.

    Returns
    -------
    SyntheticInputs
        The draws.

    Raises
    ------
    InputError
        When there are no descriptions, they are of inputs of different shapes, kinds or classes, or contradict
        themselves.
    UnsupportedError
        When no site says what is needed.
    OptionError
        For a count that is none.

    Examples
    --------
    >>> said = Moments(100, np.array([0.0, 5.0]), np.zeros((0, 2)), np.array([1.0, 0.01]))
    >>> sites = [Description("a1", 300, (2,), inputs=said), Description("b2", 100, (2,), inputs=said)]
    >>> drawn = draw_inputs(sites, 40, rng=1)
    >>> drawn.inputs.shape, drawn.inputs.dtype, drawn.sites.bincount()
    (torch.Size([40, 2]), torch.float32, tensor([30, 10]))
    """
    if not is_count(count):
        raise OptionError("count", f"expected a positive whole number, found {count!r}")
    shape, is_text = _shape_and_kind(descriptions, labelled)
    rng = np.random.default_rng(rng)
    if labelled:
        components, missing_classes = _class_components(descriptions)
    else:
        components, missing_classes = _site_components(descriptions, is_text), ()
    if not components:
        needed = _NEEDED[is_text, labelled]
        raise UnsupportedError("descriptions", f"no site says {needed}", "describe the networks with `data=`")
    n_draws = systematic_allocation(np.array([component.mass for component in components]), count, rng)
    blocks: list[np.ndarray] = []
    for component, n in zip(components, n_draws.tolist(), strict=True):
        described = descriptions[component.site]
        if component.tokens is not None:
            blocks.append(_draw_texts(described.name, component.tokens, shape[0], n, rng))
        elif component.moments is not None:
            blocks.append(_draw_real(described, component.moments, shape, n, rng))
    # Components were drawn one after the other: inputs, labels and sites are shuffled alike.
    order = rng.permutation(count)
    labels = np.repeat([component.label for component in components], n_draws)[order]
    sites = np.repeat([component.site for component in components], n_draws)[order]
    able = {component.site for component in components}
    return SyntheticInputs(
        torch.from_numpy(np.concatenate(blocks)[order]),
        torch.from_numpy(labels) if labelled else None,
        torch.from_numpy(sites),
        missing_classes,
        tuple(described.name for site, described in enumerate(descriptions) if site not in able),
    )


def draw_twice(
    descriptions: Sequence[Description],
    n_fit: int,
    n_held: int,
    rng: np.random.Generator | int = 0,
    *,
    labelled: bool = False,
) -> tuple[SyntheticInputs, SyntheticInputs]:
    """Return draws to fit networks on, and independent ones to judge them by, from two generators; see `draw_inputs`.

    Neither depends on the number of the other.

    Examples
    --------
    >>> said = Moments(100, np.zeros(2), np.zeros((0, 2)), np.ones(2))
    >>> fit, held = draw_twice([Description("a1", 300, (2,), inputs=said)], 5, 3)
    >>> len(fit), len(held), bool(torch.isin(fit.inputs, held.inputs).any())
    (5, 3, False)
    """
    fit_rng, held_rng = np.random.default_rng(rng).spawn(2)
    fit = draw_inputs(descriptions, n_fit, fit_rng, labelled=labelled)
    return fit, draw_inputs(descriptions, n_held, held_rng, labelled=labelled)


def systematic_allocation(masses: Array, count: int, rng: np.random.Generator) -> Labels:
    """Return how many of `count` draws each component gets (k,): its expected number, rounded up or down.

    A comb of unit spacing and random offset is laid over the expected numbers end to end (systematic sampling, Madow
    1949), so that the mean over offsets is the expected number itself.

    Examples
    --------
    >>> systematic_allocation(np.array([2.0, 1.0, 1.0]), 4, np.random.default_rng(0))
    array([2, 1, 1])
    """
    ends = np.cumsum(masses) / masses.sum() * count
    ends[-1] = count  # the last tooth is inside whatever the rounding of the sum
    teeth = np.floor(np.maximum(ends - rng.random(), -1.0)).astype(np.int64) + 1  # teeth below each end
    teeth[-1] = count
    return np.diff(teeth, prepend=0)


def _shape_and_kind(descriptions: Sequence[Description], labelled: bool) -> tuple[tuple[int, ...], bool]:
    """Return the shape of an input, of texts the longest, and whether inputs are texts.

    All descriptions must be of inputs of one shape and kind, and labelled ones of the same classes.
    """
    if not descriptions:
        raise InputError("descriptions", "expected at least one, found none", code="E-NEEDED")
    # Who says nothing of inputs says nothing of their shape.
    stating = [d for d in descriptions if d.inputs is not None or d.tokens is not None or d.class_moments]
    if not stating:
        return (), descriptions[0].input_kind == "tokens"
    is_text = stating[0].input_kind == "tokens"
    shapes = [tuple(described.input_shape or ()) for described in stating]
    problems = [*_input_problems(stating, is_text), *(_class_problems(descriptions) if labelled else ())]
    if problems:
        raise InputError(problems)
    return max(shapes) if is_text else shapes[0], is_text


def _input_problems(stating: Sequence[Description], is_text: bool) -> Iterator[Problem]:
    """Yield whose inputs are not as the first ones are, and which texts have several axes."""
    first = stating[0]
    for other in stating[1:]:
        if other.input_kind != first.input_kind:
            text = f"has inputs of kind {other.input_kind}, and {first.name} of {first.input_kind}"
            yield Problem(other.name, text, code="E-MISMATCH")
        elif other.input_shape != first.input_shape and not is_text:
            text = f"has inputs of shape {other.input_shape}, and {first.name} of {first.input_shape}"
            yield Problem(other.name, text, code="E-MISMATCH")
    for described in stating if is_text else ():
        if len(shape := tuple(described.input_shape or ())) != 1:
            yield Problem(described.name, f"has texts of shape {shape}, expected one axis of tokens", code="E-SHAPE")


def _class_problems(descriptions: Sequence[Description]) -> Iterator[Problem]:
    """Yield who has other classes than the first site that has any."""
    first, *others = [described for described in descriptions if described.classes is not None] or descriptions[:1]
    for other in others:
        if other.classes != first.classes:
            text = f"has other classes, or another order of them, than {first.name}"
            remedy = "give all networks the same classes in the same order"
            yield Problem(other.name, text, remedy, "E-MISMATCH")


def _canonical_sites(descriptions: Sequence[Description]) -> list[int]:
    """Return the numbers of the sites in an order that does not depend on that in which they came."""

    # Two sites may send the same network: what they say of it tells them apart, or they are the same.
    def key(site: int) -> tuple[str, float, bytes, str]:
        described = descriptions[site]
        mean = b"" if described.inputs is None else described.inputs.mean.tobytes()
        return described.digest, described.n_observations, mean, described.name

    return sorted(range(len(descriptions)), key=key)


def _site_components(descriptions: Sequence[Description], is_text: bool) -> list[_Component]:
    """Return a component for each site that describes its inputs."""
    return [
        _Component(site, -1, descriptions[site].n_observations, descriptions[site].inputs, descriptions[site].tokens)
        for site in _canonical_sites(descriptions)
        if (_has_tokens(descriptions[site].tokens) if is_text else descriptions[site].inputs is not None)
    ]


def _has_tokens(tokens: TokenCounts | None) -> bool:
    """Return whether there is a token to draw."""
    return tokens is not None and _token_counts(tokens).sum() > 0


def _token_counts(tokens: TokenCounts) -> Array:
    """Return occurrences of tokens (vocabulary,), without padding."""
    counts = np.array(tokens.unigrams, dtype=np.float64)
    if tokens.padding is not None and 0 <= tokens.padding < len(counts):
        counts[tokens.padding] = 0.0
    return counts


def _class_components(descriptions: Sequence[Description]) -> tuple[list[_Component], tuple[str, ...]]:
    """Return a component for each class of each site that describes it, and the names of classes that none does.

    A class has all its observations N_c, those of sites that say no moments of it too: these are shared among the
    sites that do, by their counts of it.
    """
    classes = next((described.classes for described in descriptions if described.classes is not None), None)
    if classes is None:
        return [], ()
    sites = _canonical_sites(descriptions)
    counts = np.zeros((len(descriptions), len(classes)))  # n_jc
    describes = np.zeros(counts.shape, dtype=bool)
    for site, described in enumerate(descriptions):
        for label, moments in described.class_moments.items():
            counts[site, label], describes[site, label] = moments.n_observations, True
        for label, tokens in described.class_tokens.items():
            describes[site, label] = _has_tokens(tokens)
        if described.class_counts is not None:
            counts[site] = described.class_counts
    components, missing = [], []
    for label, name in enumerate(classes):
        described_count = counts[describes[:, label], label].sum()
        if described_count <= 0:
            missing.append(name)
            continue
        share = counts[:, label].sum() / described_count
        components += [
            _Component(site, label, mass, moments, descriptions[site].class_tokens.get(label))
            for site in sites
            if describes[site, label] and counts[site, label] > 0
            for mass, moments in _parts(descriptions[site], label, counts[site, label] * share)
        ]
    return components, tuple(missing)


def _parts(described: Description, label: int, mass: float) -> list[tuple[float, Moments | None]]:
    """Return the mass and the moments of every part of a class; one part where it is not split."""
    parts = described.class_mixtures.get(label, ())
    if not parts:
        return [(mass, described.class_moments.get(label))]
    n = sum(part.n_observations for part in parts)
    return [(mass * part.n_observations / n, part) for part in parts]


def _draw_real(
    described: Description, moments: Moments, shape: tuple[int, ...], count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return inputs (count, ...) with the moments, in the range of a site, and with the whole numbers that it says."""
    low, high = described.input_range or (-np.inf, np.inf)
    if len(shape) == 3 and not len(moments.factor):  # an image with variances only
        # With the mean and deviation of each pixel, not of the channel: refits to these were better.
        noise: Array = dead_leaves(count, shape, rng, covered=True).reshape(count, -1).astype(np.float64)
    else:
        noise = rng.standard_normal((count, moments.mean.size))
    correlated = rng.standard_normal((count, len(moments.factor))) @ moments.factor
    clipped = np.clip(moments.mean + correlated + np.sqrt(moments.residual) * noise, low, high)
    whole = as_whole(clipped, described.whole_columns, described.inputs or moments).astype(np.float32)
    whole[np.abs(whole) < SMALLEST] = 0.0
    return whole.reshape(count, *shape)


def _draw_texts(name: str, tokens: TokenCounts, length: int, count: int, rng: np.random.Generator) -> Labels:
    """Return texts (count, length): lengths of the histogram, tokens by the chain of bigrams, padding behind."""
    lengths = np.array(tokens.lengths, dtype=np.float64)
    if lengths.sum() <= 0:  # all lengths were too rare to be said
        lengths = np.eye(length + 1)[length]
    if (lengths[length + 1 :] > 0).any():
        text = f"has texts of {len(lengths) - 1} tokens, and inputs of {length}"
        raise InputError(name, text, "describe the network again")
    if tokens.padding is None and (lengths[:length] > 0).any():
        text = f"has texts of fewer than {length} tokens, and no padding"
        raise InputError(name, text, "describe the network again")
    chain = _SamplingChain.of(tokens)
    n_tokens = rng.choice(len(lengths), count, p=lengths / lengths.sum())  # (count,)
    texts = np.full((count, length), 0 if tokens.padding is None else tokens.padding, dtype=np.int64)
    current = rng.choice(len(chain.unigrams), count, p=chain.unigrams)
    for position in range(length):
        if position:
            current = chain.step(current, rng)
        is_inside = position < n_tokens
        texts[is_inside, position] = current[is_inside]
    return texts


@dataclass(frozen=True, eq=False)
class _SamplingChain:
    """Markov chain of tokens.

    After token a it goes by the described pairs (a, b) with probability described / expected pairs of a, and by the
    frequencies of single tokens otherwise: that is where pairs go that are too rare to be said. Of u_a occurrences of a
    token, u_a (1 - texts / tokens) are expected to have one after them.
    """

    unigrams: Array  # (vocabulary,): probabilities of tokens
    followers: Labels  # (k,): second tokens of the pairs, sorted by the first
    ends: Array  # (k,): running sums of the pairs' occurrences
    starts: Array  # (vocabulary + 1,): running sum before the first pair of each token
    follows: Array  # (vocabulary,): probability that the next token is of a described pair

    @classmethod
    def of(cls, tokens: TokenCounts) -> _SamplingChain:
        """Return the chain of a site's counts."""
        counts = _token_counts(tokens)
        unigrams = counts / counts.sum()
        pairs = np.asarray(tokens.bigrams).reshape(-1, 3)
        if tokens.padding is not None:
            pairs = pairs[(pairs[:, :2] != tokens.padding).all(axis=1)]
        pairs = pairs[(pairs[:, 2] > 0) & (unigrams[pairs[:, 1].astype(np.int64)] > 0)]
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        first, second, occurrences = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), pairs[:, 2]
        # By token, the pairs that start with it.
        described = np.bincount(first, occurrences, minlength=len(unigrams)).astype(np.float64)
        lengths = np.asarray(tokens.lengths, dtype=np.float64)
        mean_length = lengths @ np.arange(len(lengths)) / max(lengths[1:].sum(), 1.0)
        expected = counts * (1.0 - 1.0 / max(mean_length, 1.0))
        follows = np.divide(described, expected, out=np.ones_like(described), where=expected > 0)
        starts = np.concatenate([[0.0], np.cumsum(described)])
        ends = np.cumsum(occurrences, dtype=np.float64)
        return cls(unigrams, second, ends, starts, np.clip(follows, 0, 1) * (described > 0))

    def step(self, current: Labels, rng: np.random.Generator) -> Labels:
        """Return the token after each (n,)."""
        fallback = rng.choice(len(self.unigrams), len(current), p=self.unigrams)
        by_pair, position = rng.random(len(current)) < self.follows[current], rng.random(len(current))
        if not len(self.followers):
            return fallback
        before, after = self.starts[current], self.starts[current + 1]
        pair = np.searchsorted(self.ends, before + position * (after - before), side="right")
        return np.where(by_pair, self.followers[np.minimum(pair, len(self.followers) - 1)], fallback)

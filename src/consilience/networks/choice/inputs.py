"""Inputs on which the default fusion makes, stops and compares candidates: three independent sets.

Where they come from, the best first:

1. unlabelled inputs that the caller gives, split in three;
2. draws from the moments, or counts of tokens, of the sites' classes, which carry labels;
3. draws from the moments of the sites' inputs, or from their counts of tokens;
4. images matched to the statistics of the networks' batch normalisation.

Without any of these there are no synthetic inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from consilience.core.progress import Progress
from consilience.errors import InputError, OptionError, UnsupportedError, reason_of
from consilience.networks.choice.choose import MARGIN_OF_IMAGES
from consilience.networks.choice.excess_errors import excess_errors
from consilience.networks.choice.rows import Rows, like_module, outputs_of
from consilience.networks.choice.sites import Sites
from consilience.networks.classes.shares import MAX_SKEW_OF_ALIKE, class_skew
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.disclosure import MIN_OBSERVATIONS, named
from consilience.networks.descriptions.input_parts import described_arguments
from consilience.networks.distillation import STEPS, has_batch_norm
from consilience.networks.example import Example, as_example, is_one_batch, joined, unlabelled
from consilience.networks.module_inputs import refuse_unfit
from consilience.networks.output_layout import OutputLayout, draw_positions, is_inside, layout_of, tokens_of
from consilience.networks.repair.partial_forward import as_batches, is_norm
from consilience.networks.synthetic.draws import SyntheticInputs, draw_inputs
from consilience.networks.synthetic.matched_images import matched_images

HELD_PER_FIT = 2
"""Inputs that compare candidates, for each one that they are fitted on: a standard error of an error rate of 20 % is
then 0.6 points at the default of 2000. Chosen by hand."""
EARLY_PER_FIT = 0.25
"""Inputs that stop distillations, for each one that candidates are fitted on; of a set that is split, its part. Chosen
by hand."""
MAX_POSITIONS = 8
"""Tokens or pixels of an input whose rows are compared, at most. Chosen by hand, for memory."""
MAX_BYTES = 2**28
"""Bytes of one set of inputs, and of the outputs at positions of it, at most: of larger ones there are fewer. Chosen by
hand, for memory."""
MIN_DESCRIBED = 0.9
"""Share of all observations that must be of classes that their site describes, for a choice by errors. Chosen by hand:
all ensembles of experiments/network_battery that describe classes have 0.97 or more."""
MIN_DRAWN = 0.5
"""Share of all observations that must be of sites that describe their inputs, for a choice by the disagreement with the
ensemble, in which the others have their vote. Without a choice one site's network is returned unseen: of fifteen
fusions of classes at sites of 12 to 72 rows that describe half to nine tenths, four were then worse than the best site,
one with a choice. Other seeds are reported (experiments/network_battery/small_sites.py); less than half was not
judged. The same of every single site, for harm to be excluded."""
FIT_SETS = 2
"""Sets of matched images that candidates are fitted on, and so many times as many steps of a distillation in which
batch normalisation reads batches. Distilled on one, two and four sets in shifted copies, two ResNet-8 had 82.6, 83.8
and 84.2 % (a pair of Fashion-MNIST that is in no table; one set of 100 steps takes as long as the refit on two), and
82.7 % after 200 steps, 84.0 after 400, 84.3 after 1,000. On inputs drawn from descriptions four ResNet-8 had 80.4 in
the mean after 200, 80.6 after 400."""
SHIFTED_COPIES = 8
"""Copies of matched images that candidates are fitted on, each image shifted: refitted on 8, two ResNet-8 had 82.0 %,
on the images alone 80.6 (Fashion-MNIST of 14 x 14 pixels, one pair)."""
MAX_EXCESS_OF_STATISTICS = 0.075
"""Mean excess of the sites' errors on inputs drawn as they describe them, up to which no images are matched for batch
normalisation, which learns its statistics from the drawn ones where sites differ in their classes. Against matched
images that gained 0.2 to 6.6 points in five ensembles of ResNet-8 with excesses of 0.01 to 0.06, and lost 1.5 in one of
0.10 (CIFAR-10). Of two networks of IID sites of CIFAR-10 it made one that erred on 34 % of others of their kind instead
of 62, and had 41 % of real images right instead of 44."""

Source = Literal["given", "drawn", "matched"]


@dataclass(frozen=True, eq=False)
class ChoiceInputs:
    """Inputs to fit candidates on, to stop their distillation by, and to compare them on."""

    # `fit`, `early`, `held`: the three sets.
    fit: Rows
    early: Rows
    held: Rows
    # Besides inputs drawn from descriptions, images matched to batch normalisation, for distillations to train on and
    # to stop by in their place.
    images: tuple[Rows, Rows] | None = None
    # Whether the caller gave them, they are drawn from descriptions, or images matched to batch normalisation.
    source: Source = "drawn"
    stand_for_all: bool = True  # whether every site's inputs are drawn as it describes them, every class among them
    notes: tuple[str, ...] = ()  # what is missing, in words
    # Share of a site's own loss by which a candidate that was fitted to such inputs must be better than it.
    margin: float = 0.0
    # Whether nothing is fitted to such inputs that is far from sites' own networks: images or texts, drawn with their
    # classes, of sites that have these alike.
    keeps_near_sites: bool = False
    # Whether batch normalisation learns its statistics from draws of descriptions (`MAX_EXCESS_OF_STATISTICS`).
    draws_teach: bool = False
    # Where the networks' outputs have their rows; None for Bayesian networks, whose draws are asked otherwise.
    layout: OutputLayout | None = None

    @property
    def to_distil(self) -> tuple[Rows, Rows]:
        """Inputs that distillations of networks with batch normalisation train on, and stop by."""
        return (self.fit, self.early) if self.images is None else self.images

    @property
    def has_matched(self) -> bool:
        """Whether distillations of networks with batch normalisation train on matched images."""
        return self.source == "matched" or self.images is not None

    @property
    def have_statistics(self) -> bool:
        """Whether batch normalisation may learn its statistics from what its distillations train on."""
        if self.source == "given":
            return len(self.fit) > MIN_OBSERVATIONS  # of which statistics of channels are known
        return self.has_matched or self.draws_teach

    def steps_for(self, module: nn.Module) -> int:
        """Return the steps of Adam in a distillation of a network on them, where the caller says none."""
        may_read = self.has_matched or self.draws_teach
        reads_batches = self.source != "given" and may_read and has_batch_norm(module)
        return FIT_SETS * STEPS if reads_batches else STEPS


def choice_inputs(
    sites: Sites,
    modules: Sequence[nn.Module],
    given: Any,
    example: Any,
    n_inputs: int,
    rng: np.random.Generator,
    progress: Progress,
    max_seconds: float | None = None,
    *,
    matches_images: bool = False,
) -> ChoiceInputs | None:
    """Return inputs for a choice, or None where nobody says what inputs are like.

    Modules are in the order of the sites. `given` are unlabelled inputs of the caller, `example` is an input for the
    shape of matched ones, `n_inputs` how many candidates are fitted on. Of `max_seconds` every set of matched images
    takes an equal part, and as long a part is left to train; with `matches_images` they are matched in addition to
    draws from which batch normalisation may not learn. Raises UnsupportedError, before any candidate is made, where
    outputs cannot be compared, and OptionError for seconds that are too few for one step.
    """
    draw_rng, image_rng, shift_rng, excess_rng, position_rng = rng.spawn(5)
    drawn = None
    if given is None and sites.described is not None:
        drawn = _draw(sites.described, n_inputs, modules[0], draw_rng)
    if given is not None:
        found: ChoiceInputs | None = _split(given, modules[0], draw_rng)
    elif drawn is None:
        found = _only_images(sites, modules, example, image_rng, shift_rng, progress, max_seconds)
    else:
        layout_of(modules[0], drawn.fit.inputs)  # which refuses, before images are matched, what cannot be compared
        found = drawn
        if matches_images and _do_draws_teach(drawn, modules, sites, excess_rng):
            found = replace(drawn, draws_teach=True)
        elif matches_images:
            found = _with_images(drawn, modules, sites, image_rng, shift_rng, progress, max_seconds)
    return None if found is None else _at_positions(found, modules, position_rng)


def _at_positions(found: ChoiceInputs, modules: Sequence[nn.Module], rng: np.random.Generator) -> ChoiceInputs:
    """Return inputs with the positions whose rows are compared, where networks answer several rows to an input.

    Of many numbers in a row there are fewer positions, and fewer inputs at last, so that outputs fit into memory.
    """
    layout = layout_of(modules[0], found.fit.inputs)
    if not layout.has_positions:
        return replace(found, layout=layout)

    def placed(rows: Rows) -> Rows:
        most_rows = MAX_BYTES // (8 * len(modules) * layout.size)
        rows = Rows(rows.inputs[: max(2, most_rows)], None if rows.labels is None else rows.labels[: max(2, most_rows)])
        count = min(layout.n_positions, max(1, min(MAX_POSITIONS, most_rows // len(rows))))
        inside = is_inside(modules[0], rows.inputs)
        positions = draw_positions(layout, len(rows), count, rng, inside)
        next_tokens, tokens = None, tokens_of(rows.inputs)
        if layout.is_next_token and found.source == "given" and tokens is not None:
            next_tokens = tokens.cpu().gather(1, positions + 1).numpy().ravel()
        device = as_example(rows.inputs).tensors[0].device
        return replace(rows, positions=positions.to(device), next_tokens=next_tokens)

    fit, early, held = map(placed, (found.fit, found.early, found.held))
    images = None if found.images is None else (placed(found.images[0]), placed(found.images[1]))
    return replace(found, fit=fit, early=early, held=held, images=images, layout=layout)


def _only_images(
    sites: Sites,
    modules: Sequence[nn.Module],
    example: Any,
    image_rng: np.random.Generator,
    shift_rng: np.random.Generator,
    progress: Progress,
    max_seconds: float | None,
) -> ChoiceInputs | None:
    """Return images of the shape of an example; None for networks without batch normalisation, and without images."""
    example = example[0] if isinstance(example, tuple) and len(example) == 1 else example
    if not isinstance(example, Tensor) or not example.is_floating_point() or not all(map(_has_norm, modules)):
        return None
    matched, notes = _match(modules, sites, example, FIT_SETS + 1, image_rng, progress, max_seconds)
    *fit_sets, others = (of_set.to(next(modules[0].parameters())) for of_set in matched)
    n_early = int(EARLY_PER_FIT * len(others))
    sets = (torch.cat(fit_sets), others[:n_early], others[n_early:])
    copied, early, held = (Rows(shifted_copies(of_set, SHIFTED_COPIES, shift_rng)) for of_set in sets)
    return ChoiceInputs(copied, early, held, source="matched", notes=notes, margin=MARGIN_OF_IMAGES)


def _do_draws_teach(drawn: ChoiceInputs, modules: Sequence[nn.Module], sites: Sites, rng: np.random.Generator) -> bool:
    """Return whether batch normalisation learns its statistics from inputs drawn from descriptions.

    It does where sites are known to differ in their classes, and err on inputs drawn as they describe them about as
    often as on their own.
    """
    inputs = drawn.fit.inputs
    is_real = isinstance(inputs, Tensor) and inputs.is_floating_point()
    if not is_real or drawn.fit.labels is None or sites.have_classes_alike or not all(map(has_batch_norm, modules)):
        return False
    if any(said is None or said.own_error is None for said in sites.descriptions):
        return False
    if outputs_of(modules[0], Rows(inputs[:1])).shape[1] < 2:
        return False
    excesses = excess_errors(sites.descriptions, lambda site, rows: outputs_of(modules[site], rows), modules[0], rng)
    return excesses.mean < MAX_EXCESS_OF_STATISTICS


def _with_images(
    drawn: ChoiceInputs,
    modules: Sequence[nn.Module],
    sites: Sites,
    rng: np.random.Generator,
    shift_rng: np.random.Generator,
    progress: Progress,
    max_seconds: float | None,
) -> ChoiceInputs:
    """Return synthetic inputs with images to distil on, for networks of images that have batch normalisation."""
    inputs = drawn.fit.inputs
    is_image = isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.is_floating_point()
    if not isinstance(inputs, Tensor) or not is_image or not all(map(_has_norm, modules)):
        return drawn
    try:
        matched, notes = _match(modules, sites, inputs, FIT_SETS, rng, progress, max_seconds)
    except (UnsupportedError, OptionError) as error:  # such as a time too short for one step
        return replace(drawn, notes=(*drawn.notes, f"no images were matched: {reason_of(error)}"))
    images = torch.cat(matched).to(inputs)
    n_early = int(EARLY_PER_FIT * len(images)) // FIT_SETS
    fit, early = (
        Rows(shifted_copies(of_set, SHIFTED_COPIES, shift_rng)) for of_set in (images[n_early:], images[:n_early])
    )
    return replace(drawn, images=(fit, early), notes=(*drawn.notes, *notes))


def shifted_copies(images: Tensor, copies: int, rng: np.random.Generator) -> Tensor:
    """Return images (n, channels, ...) repeated so many times, all but the first shifted by up to a pixel on each axis.

    What leaves at one side enters at the other. Rows of numbers have no places to shift to, and come back alone.
    """
    axes = range(2, images.ndim)
    copies = min(copies, max(1, MAX_BYTES // (images.element_size() * images.numel())))
    if not axes:
        return images
    parts = [images]
    for _ in range(copies - 1):
        shifts = rng.integers(-1, 2, (len(images), len(axes)))
        rolled = [
            torch.roll(image, tuple(shift), tuple(range(1, image.ndim)))
            for image, shift in zip(images, shifts.tolist(), strict=True)
        ]
        parts.append(torch.stack(rolled))
    return torch.cat(parts)


def _has_norm(module: nn.Module) -> bool:
    """Return whether a network has batch normalisation, with or without statistics: that of matched images says why."""
    return any(map(is_norm, module.modules()))


def _match(
    modules: Sequence[nn.Module],
    sites: Sites,
    like: Tensor,
    n_sets: int,
    rng: np.random.Generator,
    progress: Progress,
    max_seconds: float | None,
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return sets of images, of the shape of some inputs, matched to the batch normalisation of networks with a vote.

    A note says where `max_seconds`, of which every set takes an equal part, cut the matching.
    """
    voting = [number for number, weight in enumerate(sites.weights.tolist()) if weight > 0]
    matched = [
        matched_images(
            [modules[number] for number in voting],
            tuple(like.shape[1:]),
            rng=stream,
            descriptions=[sites.descriptions[number] for number in voting],
            names=[sites.names[number] for number in voting],
            max_seconds=None if max_seconds is None else max_seconds / (n_sets + 1),
            progress=progress,
        )
        for stream in rng.spawn(n_sets)
    ]
    is_cut = any(of_set.is_cut for of_set in matched)
    return [of_set.inputs for of_set in matched], ("max_seconds cut the matching of images",) * is_cut


def _split(given: Any, module: nn.Module, rng: np.random.Generator) -> ChoiceInputs:
    """Return given inputs in three parts; UnsupportedError for fewer inputs than parts."""
    inputs = _read_given(given, module)
    order = torch.as_tensor(rng.permutation(len(inputs)))
    n_fit = len(inputs) // 2
    ends = (0, n_fit, n_fit + int(EARLY_PER_FIT * (len(inputs) - n_fit)), len(inputs))
    parts = [inputs[order[start:end]] for start, end in itertools.pairwise(ends)]
    if not all(len(part) for part in parts):
        raise UnsupportedError(f"{len(inputs)} inputs are too few to compare candidates on")
    fit, early, held = (Rows(part) for part in parts)
    return ChoiceInputs(fit, early, held, source="given")


def _read_given(given: Any, module: nn.Module) -> Tensor | Example:
    """Return given inputs, without labels, as those of one call.

    Raises InputError for inputs that are not finite, or that the networks do not take, and UnsupportedError for what is
    no tensor.
    """
    batches = [unlabelled(batch, module) for batch in as_batches([given] if is_one_batch(given) else given)]
    tensors = [batch for batch in batches if isinstance(batch, Tensor)]
    examples = [batch for batch in batches if isinstance(batch, Example) and batch.tensors]
    if len(batches) not in (len(tensors), len(examples)):
        raise UnsupportedError("the inputs are not tensors")
    if len({tuple(tensor.shape[1:] for tensor in as_example(batch).tensors) for batch in batches}) > 1:
        text = "has batches of inputs of several shapes"
        raise InputError("inputs", text, "pad all of them to one length", "E-SHAPE")
    together: Tensor | Example = torch.cat(tensors) if tensors else joined(examples)
    inputs = (
        together.changed(lambda tensor: like_module(tensor, module))
        if isinstance(together, Example)
        else like_module(together, module)
    )
    refuse_unfit(module, as_example(inputs)[:2], "inputs")
    if not all(map(_is_finite, as_example(inputs).tensors)):
        raise InputError("inputs", "have NaN or infinite values", "take them out", "E-NUMBER")
    return inputs


def _is_finite(values: Tensor) -> bool:
    """Return whether all of some numbers are finite."""
    return not values.is_floating_point() or bool(torch.isfinite(values).all())


def _draw(
    described: Sequence[Description], n_inputs: int, module: nn.Module, rng: np.random.Generator
) -> ChoiceInputs | None:
    """Return three draws from descriptions, labelled where classes are described; None where inputs are not."""
    first = next((description for description in described if description.input_shape is not None), None)
    if first is None or first.input_shape is None:
        return None
    shares = [described_share(description) for description in described]
    if (is_labelled := _is_drawn_by_class(described, shares)) is None:
        return None
    is_text = first.input_kind == "tokens"
    # As many to fit, to stop and to compare on as fit into memory.
    most = max(1, MAX_BYTES // ((8 if is_text else 4) * max(1, int(np.prod(first.input_shape)))))
    draws = [
        draw_inputs(described, min(most, round(n_inputs * share)), stream, labelled=is_labelled)
        for share, stream in zip((1, EARLY_PER_FIT, HELD_PER_FIT), rng.spawn(3), strict=True)
    ]
    fit, early, held = (_rows_of(draw, module, first) for draw in draws)
    missing = draws[0].missing_classes
    notes = [f"no site describes class {', '.join(missing)}, which no candidate was judged by"] if missing else []
    notes += _labelled_notes(described, shares) if is_labelled else _unlabelled_notes(described)
    is_wide = is_text or len(first.input_shape) > 1
    counted = [one.class_counts for one in described if one.class_counts is not None]
    keeps_near_sites = is_labelled and is_wide and class_skew(counted) < MAX_SKEW_OF_ALIKE
    return ChoiceInputs(
        fit, early, held, stand_for_all=not notes, notes=tuple(notes), keeps_near_sites=keeps_near_sites
    )


def _rows_of(draw: SyntheticInputs, module: nn.Module, described: Description) -> Rows:
    """Return synthetic inputs in the arguments that a site describes."""
    inputs = described_arguments(described, like_module(draw.inputs, module))
    return Rows(inputs, None if draw.labels is None else draw.labels.numpy())


def _is_drawn_by_class(described: Sequence[Description], shares: Sequence[float]) -> bool | None:
    """Return whether enough is described by class to draw inputs with labels; None where it is too little to draw any.

    The shares are those of `described_share`.
    """
    observations = np.array([description.n_observations for description in described])
    if np.array(shares) @ observations >= MIN_DESCRIBED * observations.sum():
        return True
    says_inputs = np.array([_says_inputs(one) for one in described])
    return None if says_inputs @ observations < MIN_DRAWN * observations.sum() else False


def _says_inputs(description: Description) -> bool:
    """Return whether a description says what inputs of all classes are like."""
    return description.inputs is not None or description.tokens is not None


def _labelled_notes(described: Sequence[Description], shares: Sequence[float]) -> list[str]:
    """Return which sites describe little of their observations by class."""
    little = [one.name for one, share in zip(described, shares, strict=True) if share < MIN_DRAWN]
    return [f"{', '.join(little)}: less than half of the observations are described by class"] if little else []


def _unlabelled_notes(described: Sequence[Description]) -> list[str]:
    """Return which sites' inputs are not drawn, and which are drawn as few observations say."""
    silent = [one.name for one in described if not _says_inputs(one)]
    few = [one.name for one in described if one.inputs is not None and one.inputs.n_observations < MIN_OBSERVATIONS]
    notes = [f"{named(silent)}: inputs are not described, and none were drawn"] if silent else []
    if few:
        notes.append(f"{named(few)}: inputs are drawn as fewer than {MIN_OBSERVATIONS} observations say")
    return notes


def described_share(description: Description) -> float:
    """Return the share of a site's observations that are of classes whose moments, or counts of tokens, it says."""
    if description.class_counts is None:
        return 0.0
    labels = {*description.class_moments, *description.class_tokens}
    described = sum(float(description.class_counts[label]) for label in labels)
    return described / description.n_observations

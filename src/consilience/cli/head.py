"""The command ``head``: a site's sums of features by class, from its rows, in a file to send."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consilience.checks import AnyArray
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.options import overwrite_option, parse_classes
from consilience.core.min_count import MIN_COUNT
from consilience.errors import OptionError
from consilience.files.atomic import refuse_unwritable

if TYPE_CHECKING:
    from consilience.learners import GaussianMechanism

KINDS = ("ridge", "lda", "qda", "gaussian_nb", "bayesian", "ridge_regression", "bayesian_regression")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="Rows of this site: .npz with x and y, or .csv whose last column is y.",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File for the sums.")
@click.option("--classes", metavar="N|A,B,...", help="Number or labels of all sites' classes.  [default: those in y]")
@click.option(
    "--module", metavar="PKG.MOD:CALLABLE", help="The frozen torch module of the features. Importing it runs its code."
)
@click.option("--convolutions", metavar="COUNT", type=int, help="Features: so many random convolutions of images.")
@click.option("--fourier", metavar="COUNT", type=int, help="Features: so many random Fourier features.")
@click.option("--length", type=float, help="Length scale of the kernel, for --fourier.  [default: 1]")
@click.option("--scale", type=float, help="Deviation of pixels in [0, 1], for --convolutions.  [default: 0.3081]")
@click.option("--seed", type=click.IntRange(0), help="Of random features, the same at all sites.  [default: 0]")
@click.option(
    "--min-count",
    default=MIN_COUNT,
    show_default=True,
    help="Classes of fewer rows are left out; regressions of fewer rows refused.",
)
@click.option("--epsilon", type=float, help="Add noise for (epsilon, delta) differential privacy of each row.")
@click.option("--delta", type=float, help="With --epsilon.  [default: 1e-5]")
@click.option("--norm-bound", type=float, help="With --epsilon: public bound of the norm of features.  [default: 1]")
@overwrite_option
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def head(
    kind: Any,
    data: Path,
    output: Path,
    classes: str | None,
    module: str | None,
    convolutions: int | None,
    fourier: int | None,
    min_count: float,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Take the sums of a KIND of head on shared features of this site's rows; no row leaves.

    All sites give the same KIND and features. `consilience fuse` adds the files up to the head of all rows. Without
    --module, --convolutions or --fourier the rows are features already.
    """
    import consilience as cs  # here and below, so that other commands start without them
    from consilience import learners
    from consilience.api.kinds import inspect_file
    from consilience.estimators.site_rows import read_labelled

    refuse_unwritable(output, data, overwrite=overwrite, anywhere=False)
    inputs, targets, _ = read_labelled(data, "targets" if kind.endswith("_regression") else "classes")
    options = {name: value for name, value in given.items() if value is not None}
    noise = _noise({name: options.pop(name) for name in ("epsilon", "delta", "norm_bound") if name in options})
    computed = _features({"module": module, "convolutions": convolutions, "fourier": fourier}, options, inputs)
    labels = None if classes is None else parse_classes(classes)
    learner = learners.Head(kind, features=computed)
    fitted = learner.fit(inputs, targets, classes=labels, min_count=min_count, noise=noise)
    cs.save(fitted, output, min_count=min_count, overwrite=True)
    if as_json:
        echo_json({"description": inspect_file(output).document, "wrote": [output]})
    elif not quiet:
        click.echo(f"wrote {output}: {fitted}, {output.stat().st_size:,} bytes")


def _noise(options: Mapping[str, float]) -> GaussianMechanism | None:
    """Return the noise on the sums; None without it."""
    from consilience.learners import GaussianMechanism

    if "epsilon" in options:
        return GaussianMechanism(**options)
    if options:
        raise OptionError("--delta, --norm-bound", "are for --epsilon, which is missing")
    return None


def _features(kinds: Mapping[str, Any], options: Mapping[str, Any], inputs: AnyArray) -> Any:
    """Return what computes the features of rows; None where rows are features.

    Raises OptionError for several kinds of features, and for options of other kinds than the one given.
    """
    from consilience import features

    asked = [name for name, value in kinds.items() if value is not None]
    if len(asked) > 1:
        raise OptionError(", ".join(f"--{name}" for name in asked), "are several kinds of features; give one")
    kind = asked[0] if asked else ""
    allowed = {"convolutions": {"scale", "seed"}, "fourier": {"length", "seed"}}.get(kind, set())
    if unused := sorted(set(options) - allowed):
        raise OptionError(", ".join(f"--{name}" for name in unused), "means nothing for these features; leave it out")
    if kind == "module":
        from consilience.cli.modules import import_module

        return import_module(kinds[kind], "--module")
    if kind == "convolutions":
        shape = inputs.shape[1:]
        return features.random_convolutions((1, *shape) if len(shape) == 2 else shape, kinds[kind], **options)
    if kind == "fourier":
        return features.random_fourier(int(inputs[0].size) if len(inputs) else 1, kinds[kind], **options)
    return None

"""The command ``round answer``: a site answers the requests of a round from its own data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from consilience.checks import Json
from consilience.cli.cases import Case, Choice, CommandOfCases
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.modules import import_module, import_object
from consilience.cli.rounds.masks import MaskedOutput, masked_site_options, masks_of
from consilience.cli.rounds.places import IN_A_ROUND, at_a_site, reached, site_options, valid_place
from consilience.core.min_count import MIN_COUNT
from consilience.drawing.words import format_count
from consilience.errors import ConsilienceError
from consilience.federated.folder.answer import Answered, answer_folder
from consilience.federated.folder.masked_site import answer_masked
from consilience.federated.masking.exchange import TookPart

_MODEL: Choice = (
    Case("requests about draws", lambda given: given["density"] is not None, takes=("density",)),
    Case("requests about other models", lambda _given: True, takes=("module", "own")),
)


@contextmanager
def _naming_density(density: str | None) -> Iterator[None]:
    """Call the function of a log density by its option; Python has one argument for it and for modules."""
    try:
        yield
    except ConsilienceError as error:
        if density is None:
            raise
        called = f"--density {density}"
        named = (one.without_subject().about(called) if one.subject == "module" else one for one in error.problems)
        raise type(error)(named) from error


@click.command(cls=CommandOfCases, choices=[_MODEL, at_a_site("site"), IN_A_ROUND])
@click.argument("place", callback=valid_place)
@site_options
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Rows of this site: .csv, .npy or .npz.")
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    help="Rows that were held out of training, for choose, where --data are others.",
)
@click.option(
    "--module",
    metavar="PKG.MOD:CALLABLE",
    help="The torch module, for requests about networks: for chain the trained one. Importing it runs its code.",
)
@click.option(
    "--own",
    type=click.Path(path_type=Path),
    help="File of this site's own model, for choose, with --module of networks.  [default: the trained --module]",
)
@click.option(
    "--density",
    metavar="PKG.MOD:FUNCTION",
    help="The function of the site's log density, for requests about draws. Importing it runs its code.",
)
@masked_site_options("KEY.masked")
@click.option("--follow", is_flag=True, help="Answer all requests of the round, not the open one alone.")
@click.option("--receive", type=click.Path(path_type=Path), help="With --follow, write the model after the last one.")
@click.option("--min-count", default=MIN_COUNT, show_default=True, help="Sums over fewer observations do not leave.")
@click.option("--timeout", default=3600.0, show_default=True, help="Seconds to wait for a request, and for its end.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def answer(
    place: str,
    module: str | None,
    own: Path | None,
    density: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer the open request of the round in PLACE from this site's data; only sums over its rows leave.

    A server that was given --then KIND:N publishes the requests. Without --follow one is answered, the open one or the
    next, and the command ends; called again, it answers the next. With --signing-key all are answered, under masks.
    """
    data, masks = str(options.pop("data")), masks_of(options)
    with reached(place, options) as (storage, site):
        if masks is not None:
            output = MaskedOutput(options["receive"], quiet, as_json)
            arguments = {**masks, "module": _model_of(module, own), "say": output.say}
            arguments |= {name: options[name] for name in ("min_count", "timeout", "receive")}
            output.print(answer_masked(storage, site, data, **arguments), _masked_json)
            return
        given = _model_of(module, own) if density is None else import_object(density, f"--density {density}")
        arguments = {**options, "say": None if quiet or as_json else _print_answer, "module": given}
        with _naming_density(density):
            sent = answer_folder(storage, site, data, **arguments)
    _print_answers(sent, options["follow"] and not quiet, options["receive"], as_json)


def _masked_json(took: TookPart) -> Mapping[str, Json]:
    """Return a site's answers in a masked round as JSON values."""
    unsaid = dict.fromkeys(("n_observations", "withheld", "sha256"))
    return {"answers": [{"kind": "masked", "number": took.sums, "rounds": took.sums, **unsaid, "again": False}]}


def _model_of(named: str | None, path: Path | None) -> Any:
    """Return the module of a name, or a site's own model in a file, of a network as a module of the architecture."""
    from consilience.api.kinds import NETWORKS, kind_of_file, load_file  # here, since few answers need it

    module = None if named is None else import_module(named, "--module")
    if path is None:
        return module
    if kind_of_file(path) is not NETWORKS:
        return load_file(path)
    if module is None:
        raise click.UsageError("--own is the file of a network: give --module of its architecture too.")
    from consilience.networks.evaluate import module_of_file
    from consilience.networks.torch_modules import make_template

    template = make_template(module)
    assert template is not None  # noqa: S101  (narrows the type: the module was imported)
    return module_of_file(path, template)


def _print_answers(sent: Sequence[Answered], is_told: bool, received: Path | None, as_json: bool) -> None:
    """Print which requests were answered, and what was written."""
    if as_json:
        answers = [
            {
                "kind": one.kind, "number": one.number, "rounds": one.rounds, "n_observations": one.n_observations,
                "withheld": one.withheld, "sha256": one.announcement.digest, "again": one.again,
            }
            for one in sent
        ]  # fmt: skip
        echo_json({"answers": answers, "wrote": [] if received is None else [received]})
    elif is_told:
        click.echo(f"answered {len(sent)} requests" + ("" if received is None else f"; wrote {received}"))


def _print_answer(sent: Answered) -> None:
    """Print that a request was answered, with sums over how many rows."""
    done = "had answered" if sent.again else "answered"
    were = "was" if sent.withheld == 1 else "were"
    thin = f"; {format_count(sent.withheld, 'part')} of few observations {were} withheld"
    withheld = thin if sent.withheld else ""
    click.echo(
        f"{done} request {sent.kind} {sent.number} of {sent.rounds} with sums over {sent.n_observations} rows "
        f"({sent.announcement.digest[:12]}){withheld}"
    )

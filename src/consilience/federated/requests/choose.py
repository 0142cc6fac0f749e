"""The sites choose: fused candidates go to every site, which compares them with its own model on rows that it held out.

A site answers with sums over its held-out rows: how many, the losses of its own model and of every candidate, products
of two losses, and errors by class. The candidate of least loss over all sites is taken, and the verdict says for every
site and class whether its own model is better on its own rows (``core.site_losses``). What is compared with is what
each site has today. Where all sites said that the others may have their networks (``describe(share_network=True)``),
these are candidates too, scored at all sites.

Fused networks are sent by their arrays. A fused model of any other kind is sent as its file, and there is one.

A site that lies about its losses moves the choice by its weight at most, since errors are bounded by its rows; squared
errors are not, and the median over sites (``robust``) bounds these.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import FailFast, Field

import consilience as cs
from consilience.api.kinds import KINDS, NETWORKS, kind_of, load_file
from consilience.checks import Array
from consilience.core.fusion import Fusion
from consilience.core.held_out import MIN_HELD_OUT, digest_of_rows
from consilience.core.inputs import name_inputs
from consilience.core.kind import Kind
from consilience.core.site_losses import SITE, LossSums, SiteChoice, sums_of_losses
from consilience.core.verdict import FUSED, Verdict
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.federated.requests.base import (
    ALL_SITES,
    MAX_REQUEST_BYTES,
    Answer,
    Content,
    Reduction,
    RequestKind,
    RoundRequest,
    StandingAnswer,
)
from consilience.federated.requests.message_checks import SCATTER_ROUNDING, AnswerFields, in_order, latest_answers
from consilience.federated.requests.network_state import (
    PREFIX,
    array_names,
    arrays_of_state,
    as_double,
    network_arrays,
    network_problems,
    own_template,
    symmetric_matrix,
    upper_triangle,
    weights_in_order,
)
from consilience.files.atomic import write_bytes
from consilience.files.opening import read_file
from consilience.files.schemas import StrictModel

MAX_CLASSES = 10_000
"""Classes whose errors an answer states at most. Chosen by hand, for what a site computes for a stranger."""
MAX_SENT = 70
"""Candidates in a request at most: six fused ones, and the own networks of sites."""
BYTES_OF_HEADER = 2**20
"""Bytes that are left for what a request says besides its arrays. Chosen by hand."""
BYTES_PER_NUMBER = 6
"""Bytes of a file that one float64 of a message holds exactly."""


class ChoiceRequestFields(StrictModel):
    """JSON values of a request."""

    models: str
    """The kind of models, as in ``api.kinds``."""
    candidates: Annotated[list[str], FailFast()] = Field(min_length=1, max_length=MAX_SENT)
    n_classes: int = Field(ge=0, le=MAX_CLASSES)
    n_bytes: int = Field(ge=0)
    """Length of the file of the fused model; 0 of networks."""


class ChoiceAnswerFields(AnswerFields):
    """JSON values of an answer."""

    criterion: str = Field(max_length=200)
    is_share: bool
    rows: str | None = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the rows; None where the site read them in batches."""


class ChoiceAtSites(RequestKind):
    """The best of fused candidates on rows that sites held out, compared with each site's own model."""

    name: ClassVar[str] = "choose"
    summary: ClassVar[str] = "the best of fused candidates on rows that sites held out, and a verdict from these"
    supports: ClassVar[str] = "fused models whose rows have a score"
    models: ClassVar[str] = ""
    needs_module: ClassVar[bool] = True
    asks_held_out: ClassVar[bool] = True
    module: ClassVar[str] = "the site's own trained model"
    tells: ClassVar[tuple[tuple[str, str], ...]] = (
        ("losses", "of its own model and of the fused ones over its held-out rows, and errors by class"),
    )
    request_fields: ClassVar[type[StrictModel]] = ChoiceRequestFields
    answer_fields: ClassVar[type[StrictModel]] = ChoiceAnswerFields
    no_request: ClassVar[str] = "has no candidates to choose among"

    def start(self, fusion: Any) -> Content:
        """Return the candidates; see `RequestKind.start`."""
        kind = kind_of(name_inputs([fusion]))
        if kind is NETWORKS:
            arrays = _sendable({**_candidate_arrays(fusion), **_shared_arrays(fusion)})
            names = list(arrays)
            content = {f"{number}:{key}": one for number, name in enumerate(names) for key, one in arrays[name].items()}
            n_classes, n_bytes = _n_classes(fusion, content), 0
        else:
            data = _file_of(fusion)
            names, n_classes, n_bytes = [FUSED], 0, len(data)
            content = {"file": _as_numbers(data)}
        fields = {"models": kind.name, "candidates": names, "n_classes": n_classes, "n_bytes": n_bytes}
        return Content(fields, content, _known_of(kind, fusion))

    def site_module(self, fusion: Any, site: str) -> Any:
        """Return a site's own model as it came; see `RequestKind.site_module`."""
        own = kind_of(name_inputs([fusion])).own_models(fusion)
        if site not in own:
            raise InputError(site, "answers, and none of the models that were fused is called so", code="E-ROUND")
        return own[site]

    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with the candidates; see `RequestKind.state_problems`."""
        fields, arrays = request.content.fields, request.content.arrays
        names = fields["candidates"]
        if len(set(names)) < len(names):
            return [Problem("request", "names a candidate twice")]
        if fields["models"] not in [kind.name for kind in KINDS]:
            return [Problem("request", f"is of {fields['models']!r:.80}, a kind of models that this version lacks")]
        if fields["models"] == NETWORKS.name:
            return [problem for number in range(len(names)) for problem in network_problems(_of(number, arrays))]
        n_numbers = -(-fields["n_bytes"] // BYTES_PER_NUMBER)
        if set(arrays) != {"file"} or arrays["file"].shape != (n_numbers,) or not n_numbers:
            return [Problem("request", "has no file of a fused model")]
        if np.any(arrays["file"] != np.rint(arrays["file"])) or np.any(arrays["file"] < 0):
            return [Problem("request", "its file is no bytes")]
        return []

    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return sums of the losses on a site's held-out rows; see `RequestKind.answer`."""
        fields = request.content.fields
        kind = next(one for one in KINDS if one.name == fields["models"])
        rows = kind.losses(_models(kind, request, module), data)
        sums = sums_of_losses(rows, min_count)
        n_classes = int(fields["n_classes"])
        if rows.n_classes != n_classes:
            counts, errors = np.zeros(n_classes), np.zeros((len(sums.losses), n_classes))
        else:
            counts, errors = sums.counts, sums.errors
        withheld = 0 if rows.labels is None else int(np.unique(rows.labels).size - np.count_nonzero(counts))
        arrays = {
            "losses": sums.losses,
            "products": upper_triangle(sums.products),
            "ties": sums.ties,
            "counts": counts,
            "errors": errors,
        }
        said = {
            "withheld": max(0, withheld),
            "criterion": rows.criterion,
            "is_share": rows.is_share,
            "rows": digest_of_rows(data),
        }
        return sums.n, Content(said, arrays)

    def sums(self, request: RoundRequest) -> Mapping[str, tuple[tuple[int, ...], int]] | None:
        """Return the shapes of the sums, and their units; see `RequestKind.sums`."""
        k, n_classes = len(request.content.fields["candidates"]) + 1, int(request.content.fields["n_classes"])
        shapes = {
            "losses": (k,),
            "products": (k * (k + 1) // 2,),
            "ties": (k,),
            "counts": (n_classes,),
            "errors": (k, n_classes),
        }
        return {name: (shape, -20) for name, shape in shapes.items()}

    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with sums; see `RequestKind.sum_problems`."""
        n, sums = answer.n_observations, _sums_of(answer)
        if n < MIN_HELD_OUT:
            return [Problem("answer", f"is of {n} rows, and a comparison needs {MIN_HELD_OUT}")]
        if np.any(sums.counts < 0) or np.any(sums.counts != np.rint(sums.counts)) or sums.counts.sum() > n:
            return [Problem("answer", "its counts are no counts of its rows")]
        if few := np.flatnonzero((sums.counts > 0) & (sums.counts < answer.min_count)).tolist():
            return [Problem("answer", f"discloses class {few[0]}, which has fewer rows than the site's `min_count`")]
        tolerance = 1e-9 * n
        if answer.content.fields["is_share"]:
            if np.any(sums.losses < -tolerance) or np.any(sums.losses > n + tolerance):
                return [Problem("answer", "its errors are not between none and all of its rows")]
            if np.any(sums.errors < -tolerance) or np.any(sums.errors > sums.counts + tolerance):
                return [Problem("answer", "its errors in a class are not between none and all of it")]
            if np.any(sums.errors.sum(axis=1) > sums.losses + tolerance):
                return [Problem("answer", "its errors by class are more than all of its errors")]
        spread = sums.products - np.outer(sums.losses, sums.losses) / n
        scale = max(float(np.trace(sums.products)), np.finfo(np.float64).tiny)
        if np.linalg.eigvalsh(spread)[0] < -SCATTER_ROUNDING * scale:
            return [Problem("answer", "its products of losses are those of no rows")]
        return []

    def fields_of_sum(self, request: RoundRequest, withheld: int) -> dict[str, Any]:
        """Return the JSON values of the sum of all answers; see `RequestKind.fields_of_sum`."""
        return {"withheld": withheld, "criterion": "loss", "is_share": False, "rows": None}

    def lines_at_site(self, answer: Answer) -> tuple[str, ...]:
        """Return the mean losses on a site's own rows; see `RequestKind.lines_at_site`."""
        fields, means = answer.content.fields, _sums_of(answer).means
        listed = [f"{loss:.1%}" if fields["is_share"] else f"{loss:.4g}" for loss in means]
        of_candidates = ", ".join(listed[1:])
        return (
            f"{fields['criterion']} on {answer.n_observations} own rows: own model {listed[0]}, "
            f"{'candidates' if len(listed) > 2 else 'fused model'} {of_candidates}",
        )

    def verdict(self, content: Content) -> Verdict | None:
        """Return what the sites' rows say; see `RequestKind.verdict`."""
        choice: SiteChoice = content.private.choice
        return choice.verdict()

    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return which candidate loses least at the sites that answered; see `RequestKind.reduce`.

        The objective is its loss with the sign turned, before that of the first candidate, which was fused.
        """
        known: _KnownOfSites = request.content.private or _KnownOfSites({}, {})
        answered, carried = latest_answers(request, answers, standing)
        others = {
            site: "its rows are not those that it said to hold out"
            for site, one in answered.items()
            if known.digests.get(site) not in (None, one.answer.content.fields["rows"])
        }
        chosen = in_order({site: one for site, one in answered.items() if site not in others})
        criteria = {one.answer.content.fields["criterion"] for one in chosen.values()}
        if len(criteria) > 1:
            listed = [f"{site}: {one.answer.content.fields['criterion']}" for site, one in chosen.items()]
            raise InputError("answers", f"are by several criteria ({'; '.join(listed)})", code="E-MISMATCH")
        sums = {site: _sums_of(one.answer) for site, one in chosen.items()}
        is_known = set(sums) <= set(known.observations)
        weights = {site: known.observations[site] if is_known else float(one.n) for site, one in sums.items()}
        names = list(request.content.fields["candidates"])
        is_share = all(one.answer.content.fields["is_share"] for one in chosen.values())
        choice = SiteChoice(
            names,
            [name.startswith(SITE) for name in names],
            sums,
            weights,
            criteria.pop(),
            is_share=is_share,
            is_robust=known.is_robust,
            left_out=others,
            is_summed=set(sums) == {ALL_SITES},
        )
        state = Content(request.content.fields, request.content.arrays, replace(known, choice=choice))
        return Reduction(state, -float(choice.losses[choice.chosen]), -float(choice.losses[1]), chosen, carried)

    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fusion with the chosen candidate; see `RequestKind.finish`."""
        if not isinstance(fusion, Fusion):  # one model, among which there is nothing to choose
            return fusion
        choice: SiteChoice = content.private.choice
        kind = kind_of(name_inputs([fusion]))
        return kind.with_candidate(fusion, choice.name).chosen_at(choice)


@dataclass(frozen=True)
class _KnownOfSites:
    """What the server knows of sites, and no message has."""

    observations: Mapping[str, float]
    digests: Mapping[str, str | None]  # of the rows that each said to hold out
    is_robust: bool = False  # whether the median over them counts
    choice: SiteChoice | None = None  # what they chose, once they answered


def _known_of(kind: Kind, fusion: Any) -> _KnownOfSites:
    """Return what a fusion says of its sites."""
    if not hasattr(fusion, "inputs"):
        return _KnownOfSites({}, {})
    described = {local.name: getattr(local, "description", None) for local in fusion.inputs}
    digests = {name: None if one is None else one.held_out for name, one in described.items()}
    is_robust = bool((fusion.provenance.get("options") or {}).get("robust"))
    return _KnownOfSites(kind.observations(fusion), digests, is_robust)


def _candidate_arrays(fusion: Any) -> dict[str, dict[str, Array]]:
    """Return the arrays of the candidates by name, as a message has them."""
    from consilience.networks.candidates_at_sites import candidate_names
    from consilience.networks.torch_modules import arrays_of_module

    if not hasattr(fusion, "inputs"):  # one network, such as masked sums start from
        return {FUSED: {PREFIX + key: as_double(values) for key, values in fusion.arrays.items()}}
    own = network_arrays(fusion, ChoiceAtSites.name)
    arrays = {}
    for name, is_fused in candidate_names(fusion):
        if is_fused:
            arrays[name] = own
        else:
            state = arrays_of_module(fusion.candidates[name])
            arrays[name] = {PREFIX + key: as_double(state[key]) for key in fusion.network.arrays}
    return arrays


def _shared_arrays(fusion: Any) -> dict[str, dict[str, Array]]:
    """Return the arrays of the own networks of sites by their names as candidates; none unless all sites said so."""
    if not hasattr(fusion, "inputs"):
        return {}
    kept = [local for local in fusion.inputs if local.name not in fusion.left_out]
    if not all(local.description is not None and local.description.share_network for local in kept):
        return {}
    return {
        f"{SITE}{local.name}": {PREFIX + key: as_double(local.as_sent.arrays[key]) for key in fusion.network.arrays}
        for local in kept
    }


def _sendable(arrays: dict[str, dict[str, Array]]) -> dict[str, dict[str, Array]]:
    """Return the arrays of as many candidates as sites read, the own networks of sites all or none.

    Raises UnsupportedError where not even one fits.
    """
    n_bytes = max(sum(one.nbytes for one in of_one.values()) for of_one in arrays.values())
    most = min(MAX_SENT, (MAX_REQUEST_BYTES - BYTES_OF_HEADER) // n_bytes)
    if not most:
        text = f"networks of {n_bytes:,} bytes are more than the {MAX_REQUEST_BYTES:,} that a site reads of a request"
        raise UnsupportedError(ChoiceAtSites.name, text, "hold rows out in one place: `fuse(held_out=)`")
    own = [name for name in arrays if name.startswith(SITE)]
    fused = [name for name in arrays if not name.startswith(SITE)]
    kept = [*fused[: most - len(own)], *own] if len(own) < most else fused[:most]
    return {name: arrays[name] for name in kept}


def _n_classes(fusion: Any, arrays: Mapping[str, Array]) -> int:
    """Return the number of classes by which sites count errors: those that they named, or outputs of the last layer."""
    network = getattr(fusion, "network", fusion)
    if (named := getattr(fusion, "details", {}).get("classes")) is not None:
        return len(named)
    outputs = [path for path, is_output in weights_in_order(network) if is_output]
    if len(outputs) != 1:
        return 0
    n_outputs = int(arrays[f"0:{PREFIX}{array_names(outputs[0])[0]}"].shape[0])
    return n_outputs if 1 < n_outputs <= MAX_CLASSES else 0


def _of(number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of one candidate in a message."""
    start = f"{number}:"
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}


def _file_of(fusion: Any) -> bytes:
    """Return the bytes of a fused model's file."""
    if getattr(fusion, "keeps_models", False):
        text = "this fusion keeps all models side by side"
        raise UnsupportedError(ChoiceAtSites.name, text, "fuse by a method that makes one")
    with tempfile.TemporaryDirectory(prefix="consilience-choose-") as folder:
        path = Path(folder) / "fused.safetensors"
        fusion.save(path) if isinstance(fusion, Fusion) else cs.save(fusion, path)
        return read_file(path)


def _as_numbers(data: bytes) -> Array:
    """Return bytes as whole numbers in float64."""
    padded = data + bytes(-len(data) % BYTES_PER_NUMBER)
    digits = np.frombuffer(padded, dtype=np.uint8).reshape(-1, BYTES_PER_NUMBER).astype(np.float64)
    numbers: Array = digits @ (256.0 ** np.arange(BYTES_PER_NUMBER))
    return numbers


def _as_bytes(numbers: Array, n_bytes: int) -> bytes:
    """Return the bytes that whole numbers stand for; inverse of `_as_numbers`."""
    whole = numbers.astype(np.uint64)[:, None] >> (8 * np.arange(BYTES_PER_NUMBER, dtype=np.uint64))
    return (whole & np.uint64(255)).astype(np.uint8).tobytes()[:n_bytes]


def _models(kind: Kind, request: RoundRequest, own: Any) -> list[Any]:
    """Return a site's own model and the candidates of a request."""
    fields, arrays = request.content.fields, request.content.arrays
    if kind is NETWORKS:
        from consilience.networks.evaluate import module_of  # here, since it needs torch

        template = own_template(own)
        names = fields["candidates"]
        states = [{key: one.copy() for key, one in arrays_of_state(_of(n, arrays)).items()} for n in range(len(names))]
        fused = [module_of(state, template, name) for state, name in zip(states, names, strict=True)]
        return [template.eval(), *fused]
    with tempfile.TemporaryDirectory(prefix="consilience-choose-") as folder:
        path = Path(folder) / "fused.safetensors"
        write_bytes(path, _as_bytes(arrays["file"], int(fields["n_bytes"])))
        return [own, load_file(path)]


def _sums_of(answer: Answer) -> LossSums:
    """Return the sums of an answer."""
    arrays = answer.content.arrays
    products = symmetric_matrix(arrays["products"], len(arrays["losses"]))
    return LossSums(
        answer.n_observations, arrays["losses"], products, arrays["ties"], arrays["counts"], arrays["errors"]
    )

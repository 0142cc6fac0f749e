"""Inspection of network files, checkpoints, symmetries and Fisher information, from headers alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from consilience.checks import Json
from consilience.core.inspection import MAX_LISTED, PEOPLE, Row, listed, people_rows, plain_words, provenance_rows
from consilience.core.kind import Inspection
from consilience.core.min_count import shown_text
from consilience.drawing.words import format_count
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.networks.files import NetworkSummary, read_network_summary
from consilience.networks.fisher.files import FISHER_FILES, FisherHeader, layer_people_rows, rank_of
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.symmetry.symmetry import Symmetry, symmetry_to_json
from consilience.networks.weight_parts import plain_shapes


def inspect_network(file: SafetensorsFile) -> Inspection:
    """Return the inspection of a network file or a plain checkpoint, from its header."""
    summary = read_network_summary(file)
    rows = [*_network_rows(file, summary), *network_people_rows(summary.shapes)]
    return Inspection(_network_document(summary), rows, _network_in_plain_words(summary))


_LOADED_BY = "`net.load_state_dict(safetensors.torch.load_file(FUSED))`"


def _network_in_plain_words(summary: NetworkSummary) -> tuple[str, ...]:
    """Return in sentences what a network's file is and what to do with it."""
    parameters = format_count(_parameters(summary), "parameter")
    made = summary.provenance is not None
    if summary.symmetry is None:
        following = (
            "write it with `consilience site describe FILE --module PKG.MOD:CALLABLE --data DATA -o NEW`, which adds"
            " what is known of its units, or trace it in `consilience fuse FILE... --module PKG.MOD:CALLABLE --example"
            " SHAPE -o FUSED`; checkpoints of one base need no units: `consilience merge FILE... -o merged`"
        )
        what = f"a plain checkpoint of {parameters}, which does not say which of its units may be permuted"
        partners = "networks of the same architecture"
        return plain_words(what, None, partners, following=None if made else following, loaded_by=_LOADED_BY)
    proved = "proved" if summary.symmetry.proved else "not proved"
    what = f"a {'fused ' * made}network of {parameters}, which says which of its units may be permuted ({proved})"
    return plain_words(what, None, "networks whose units move in the same groups", made, loaded_by=_LOADED_BY)


def inspect_fisher(file: SafetensorsFile) -> Inspection:
    """Return the inspection of a file of Fisher information, from its header."""
    header, tensors = FISHER_FILES.read_header(file)
    shapes = {name: list(shape) for name, shape in tensors.shapes.items()}
    document = {"kind": "fisher", "header": header.model_dump(), "rank": rank_of(tensors), "shapes": shapes}
    plain = plain_words(
        "the Fisher information of a network: how surely each of its parameters is known",
        header.observations,
        "nothing alone: it is used with its network, and with the networks and information of other sites",
        following="give it with its network: `consilience fuse NET... INFORMATION... --method fisher -o FUSED`",
    )
    return Inspection(document, _fisher_rows(file, header, tensors), plain)


def inspect_symmetry(symmetry: Symmetry, name: str) -> Inspection:
    """Return the inspection of a symmetry's own file."""
    rows = [("file", name), ("format", "consilience-symmetry"), *symmetry_rows(symmetry)]
    plain = plain_words(
        f"the symmetry of an architecture, {'' if symmetry.proved else 'not '}proved: which units may be permuted",
        0.0,
        "nothing: it says how networks of its architecture can be",
        following="fuse checkpoints with it: `consilience fuse FILE... --symmetry SYMMETRY -o FUSED`",
    )
    return Inspection({"kind": "symmetry", **symmetry_document(symmetry)}, rows, plain)


def symmetry_document(symmetry: Symmetry) -> dict[str, Json]:
    """Return a symmetry as JSON values."""
    return {"proved": symmetry.proved, "symmetry": symmetry_to_json(symmetry)}


def _network_document(summary: NetworkSummary) -> dict[str, Json]:
    document = {"symmetry": None, "proved": False} if summary.symmetry is None else symmetry_document(summary.symmetry)
    units = None if summary.symmetry is None else summary.symmetry.units(plain_shapes(summary.shapes))
    return {
        "kind": summary.kind,
        "arrays": {n: {"shape": list(s), "dtype": summary.dtypes[n]} for n, s in summary.shapes.items()},
        "parameters": _parameters(summary),
        "units": units,
        "provenance": summary.provenance,
        "library_version": summary.library_version,
        **document,
    }


def _parameters(summary: NetworkSummary) -> int:
    """Return the number of parameters: real numbers that are no running statistics, tied ones once."""
    aliases = {} if summary.symmetry is None else summary.symmetry.aliases
    return sum(
        prod(shape)
        for name, shape in summary.shapes.items()
        if name not in aliases and "float" in summary.dtypes[name] and not name.endswith(RUNNING_STATISTICS)
    )


def _network_rows(file: SafetensorsFile, summary: NetworkSummary) -> list[Row]:
    """Return the rows of a network file's or checkpoint's inspection: names and texts."""
    version = "" if summary.library_version is None else f" (consilience {summary.library_version})"
    what = "consilience-network" if summary.kind == "network" else "a plain checkpoint: says nothing of its units"
    dtypes = sorted(set(summary.dtypes.values()))
    shown = [f"{name} {list(shape)}" for name, shape in list(summary.shapes.items())[:MAX_LISTED]]
    n_parameters = _parameters(summary)
    rows = [
        ("file", str(file)),
        ("format", what + version),
        ("parameters", f"{n_parameters:,} in {format_count(len(summary.shapes), 'array')} of {', '.join(dtypes)}"),
        ("arrays", listed(shown, len(summary.shapes))),
    ]
    if summary.symmetry is not None:
        rows += symmetry_rows(summary.symmetry, summary.symmetry.units(plain_shapes(summary.shapes), str(file)))
    if summary.provenance is not None:
        rows += provenance_rows(summary.provenance)
    return rows


def _fisher_rows(file: SafetensorsFile, header: FisherHeader, tensors: TensorHeader) -> list[Row]:
    """Return the rows of the inspection of a file of Fisher information: names and texts."""
    shown = [f"{name} {list(tensors.shapes[f'residual/{name}'])}" for name in header.parameters]
    rank = rank_of(tensors)
    kind = f"diagonal and {format_count(rank, 'factor')}" if rank else "diagonal"
    if header.layers:
        kind = f"Kronecker factors of {format_count(len(header.layers), 'layer')}, diagonal of the rest"
    outcomes = "exact" if header.samples is None else f"{format_count(header.samples, 'outcome')} drawn for each"
    return [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("information", f"{kind}; {header.likelihood} likelihood, {outcomes}"),
        ("observations", f"{_format_known(header.observations)}, {header.seen} of them looked at"),
        ("prior", f"precision {_format_known(header.prior_precision)}"),
        ("parameters", listed(shown)),
        *_factor_rows(header, tensors.shapes),
        ("network", f"sha256 {header.digest} of its parameters"),
        *_people_rows(header, has_factors=rank > 0),
    ]


def _factor_rows(header: FisherHeader, shapes: Mapping[str, tuple[int, ...]]) -> list[Row]:
    """Return the layers that have Kronecker factors with their sizes, and the bytes of all."""
    if not header.layers:
        return []
    texts = [
        f"{path or 'the network'} {sizes[2]} x {sizes[1]}" if len(sizes) == 4 else path
        for path, sizes in header.layers.items()
    ]
    n_bytes = 4 * sum(prod(shape) for name, shape in shapes.items() if name.startswith("layers/"))
    return [("layers", listed(texts)), ("sizes", f"Kronecker factors {n_bytes:,} bytes")]


def network_people_rows(names: Iterable[str] = ()) -> list[Row]:
    """Return what the weights of a network, its arrays of these names, tell about people, in plain words."""
    rows: list[Row] = [
        ("weights", "what the network learned, at times single observations by heart: rare ones most of all"),
        ("membership", "whoever has an observation can test by the network's loss on it whether it was learned from"),
    ]
    if any(name.endswith(RUNNING_STATISTICS) for name in names):
        text = "with the weights, what inputs look like on the whole, and about what share of them is of each class"
        rows.append(("statistics", f"{text}: to a tenth or two"))
    return people_rows(rows, "nothing is withheld from weights")


def _people_rows(header: FisherHeader, has_factors: bool) -> list[Row]:
    """Return what Fisher information tells about people, in plain words."""
    if header.layers:
        return [(PEOPLE, ""), *layer_people_rows(header.seen)]
    rows: list[Row] = [
        ("squares", "how much the network's answers depend on each weight, summed over the observations")
    ]
    if has_factors:
        rows.append(("directions", "in which weights do so together; none is the gradient of one observation"))
    seen = "observations whose number is not said" if header.seen is None else f"{shown_text(header.seen)} observations"
    return people_rows(rows, f"it is a sum over {seen}")


def _format_known(value: float | None) -> str:
    """Return a number as text, and words for one that is not known."""
    return "not stated" if value is None else f"{value:g}"


def symmetry_rows(symmetry: Symmetry, units: dict[str, int] | None = None) -> list[Row]:
    """Return the rows of a symmetry: groups with their units, proof, tied arrays and notes."""
    sizes = symmetry.groups if units is None else units
    rows = [
        ("groups", f"{len(sizes)}: " + listed([f"{name} {size}" for name, size in sizes.items()]) if sizes else "none")
    ]
    if sizes:
        rows.append(("proved", proof_of(symmetry)))
    if symmetry.aliases:
        rows.append(("tied", listed([f"{alias} is {name}" for alias, name in symmetry.aliases.items()])))
    return rows + [("note", note) for note in symmetry.notes]


def proof_of(symmetry: Symmetry) -> str:
    """Return whether a symmetry is proved, in words."""
    if symmetry.proved and symmetry.proof is not None:
        return (
            f"yes: outputs differed by {symmetry.proof.deviation:.1e} at most, {symmetry.proof.trials} trials a group"
        )
    return (
        "no; `consilience network symmetry` proves it"
        if symmetry.proof is None
        else "no: it was changed since it was proved"
    )

"""A strategy for a ServerApp of one's own: what ClientApps return is checked and fused as in a round.

The usual Flower app stays as it is: ``flwr run``, sampling of nodes, evaluation on the clients. In place of the average
of arrays by number of examples, replies pass the checks of a round (`round`): what is wrong with one is named and left
out, and the others are fused by any method. Clients return the arrays of a network, as for FedAvg, or the file of any
model (`model_record`); these come back to them in the form in which they were sent.

This is Flower with all that Flower does: its server sees every reply, and a node's name is what the SuperLink says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import consilience as cs
from consilience.api.kinds import load_file
from consilience.core.fusion import Fusion
from consilience.core.provenance import file_digest
from consilience.errors import InputError, OptionError, fault_of
from consilience.federated.contribution import Announcement, Contribution
from consilience.federated.flower.messages import quiet_flower
from consilience.federated.plan import NAME_RULE, RoundPlan, is_name
from consilience.federated.report import RoundError, RoundReport
from consilience.federated.round import run_round
from consilience.files.limits import Limits
from consilience.files.opening import read_file
from consilience.files.safetensors_file import SafetensorsFile

quiet_flower()

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402  (after it was quieted)
from flwr.serverapp.strategy import FedAvg  # noqa: E402

FILE, COMPANION = "consilience.model", "consilience.companion"
"""Names of the arrays that are files: of a model, and of its description or Fisher information."""


def model_record(model: Any, data: Any = None, **options: Any) -> ArrayRecord:
    """Return a model as the arrays of a reply: the bytes of the file that ``consilience.save`` writes of it.

    Parameters
    ----------
    model
        What ``consilience.save`` takes, or a fusion.
    data
        Described with a network; see ``consilience.save``.
    **options
        As for ``consilience.save``.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> list(model_record(GaussianNB().fit(X, y)))
    ['consilience.model']
    """
    with tempfile.TemporaryDirectory(prefix="consilience-flower-") as folder:
        path = Path(folder) / "model.safetensors"
        if isinstance(model, Fusion):
            model.save(path)
        else:
            cs.save(model, path, **({} if data is None else {"data": data}), **options)
        companions = [one for one in sorted(Path(folder).iterdir()) if one != path]
        files = dict(zip((FILE, COMPANION), (path, *companions), strict=False))
        return ArrayRecord({name: _bytes_as_array(read_file(file)) for name, file in files.items()})


def model_of_record(arrays: ArrayRecord) -> Any:
    """Return the model in arrays of `model_record`, as ``consilience.load`` does; None where there is none yet."""
    if FILE not in arrays:
        return None
    with tempfile.TemporaryDirectory(prefix="consilience-flower-") as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(_array_as_bytes(arrays[FILE]))
        return load_file(SafetensorsFile(path))


class FusionStrategy(FedAvg):
    """Fuse what ClientApps return, by any method and with the checks of a round.

    Parameters
    ----------
    method : str or method, optional
        As for ``consilience.fuse``. Default: the recommended one.
    quorum : int, optional
        Good replies without which the model stays as it is. Default: more than half of those that came.
    sites : mapping of int to str, optional
        Names of nodes in reports. Default: "node-ID".
    module : Module or callable, optional
        Of networks whose arrays are replied: the architecture.
    options : mapping, optional
        Further keywords of ``consilience.fuse``, such as ``robust`` or ``example``.
    limits : Limits, optional
        Largest sizes of a file. Default: those of a round.
    allow_single, trust_counts : bool
        As for `serve_folder`. Default: False.
    say : callable, optional
        Called with each line of the report of a round. Default: no lines.
    rng : int
        Seed. Default: 0.
    **flower
        As for ``flwr.serverapp.strategy.FedAvg``: ``fraction_train``, ``min_train_nodes`` and so on.

    Attributes
    ----------
    fusion : Fusion or None
        Of the last round that gave one, with its verdict.
    reports : list of RoundReport
        Who took part in each round, and who was left out and why.

    Examples
    --------
    In a ServerApp::

        strategy = FusionStrategy("consensus", module=make_network, options={"example": torch.zeros(1, 64)})
        strategy.start(grid, initial_arrays=ArrayRecord(make_network().state_dict()), num_rounds=1)
        strategy.fusion.save("fused.safetensors")
    """

    def __init__(
        self,
        method: Any = None,
        *,
        quorum: int | None = None,
        sites: Mapping[int, str] | None = None,
        module: Any = None,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        allow_single: bool = False,
        trust_counts: bool = False,
        say: Callable[[str], None] | None = None,
        rng: int = 0,
        **flower: Any,
    ) -> None:
        super().__init__(**flower)
        if options is not None and "module" in options:
            raise OptionError("options", "has a module", "give it as `module=`")
        if wrong := [name for name in (sites or {}).values() if not is_name(name)]:
            raise OptionError("sites", f"expected names of {NAME_RULE}; found {wrong[0]!r}")
        self.method, self.module, self.quorum, self.sites = method, module, quorum, dict(sites or {})
        self.options = {**(options or {}), **({} if module is None else {"module": module})}
        self.limits, self.seed, self.say = limits or Limits(), rng, say or (lambda _line: None)
        self.allow_single, self.trust_counts = allow_single, trust_counts
        self.fusion: Fusion | None = None
        self.reports: list[RoundReport] = []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the fused model and how many replies it is of; None for both where nothing could be fused."""
        good, failed = self._check_and_log_replies(replies, is_train=True, validate=False)
        needed = max(2, self.quorum or 2)
        if len(good) < needed:
            came = f"{len(good)} replies and {len(failed)} failures"
            self.say(f"round {server_round}: {came}, and it takes {needed} replies; the model stays as it was")
            return None, None
        contents = {self._site(reply): reply.content for reply in good}
        have_files = any(FILE in record for content in contents.values() for record in content.array_records.values())
        plan = RoundPlan(
            tuple(contents), self.method, self.options, self.seed, quorum=self.quorum, limits=self.limits,
            allow_single=self.allow_single, trust_counts=self.trust_counts,
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="consilience-flower-") as folder:
            contributions = [
                self._contribution(site, content, server_round, Path(folder)) for site, content in contents.items()
            ]
            try:
                result = run_round(plan, contributions, number=server_round)
            except InputError as error:
                return self._failed(error)
            self.fusion = result.model
            self.reports.append(result.report)
            for line in result.report.lines():
                self.say(line)
            arrays = model_record(self.fusion) if have_files else _state_record(self.fusion)
        report = result.report
        return arrays, MetricRecord({"took-part": len(report.took_part), "left-out": len(report.left_out)})

    def _failed(self, error: InputError) -> tuple[None, None]:
        """Say why nothing was fused."""
        if isinstance(error, RoundError):
            self.reports.append(error.report)
        for problem in error.problems:
            self.say(str(problem))
        return None, None

    def _site(self, reply: Message) -> str:
        """Return the name of the node that a reply is of."""
        node = reply.metadata.src_node_id
        return self.sites.get(node, f"node-{node}")

    def _contribution(self, site: str, content: RecordDict, number: int, folder: Path) -> Contribution:
        """Return the files of a reply; what cannot be one is a problem of its site."""
        (folder / site).mkdir()
        try:
            paths = self._files(content, folder / site)
        except Exception as error:  # whatever one site's reply makes fail must not end the round of all
            found = error.problems if isinstance(error, InputError) else (fault_of(error),)
            problem = "; ".join(str(one.without_subject()) for one in found)
            return Contribution(Announcement(site, number, 1, "0" * 64), problem=problem)
        announcement = Announcement(site, number, 1, *[file_digest(path) for path in paths])
        return Contribution(announcement, paths[0], paths[1] if len(paths) > 1 else None)

    def _files(self, content: RecordDict, folder: Path) -> list[Path]:
        """Write the model in a reply, and what travels with it; raise InputError where there is none."""
        records = list(content.array_records.values())
        if len(records) != 1 or not len(records[0]):
            text = f"replied {len(records)} records of arrays, expected one that is not empty"
            raise InputError("reply", text, "return RecordDict({'arrays': ..., 'metrics': ...})", "E-SHAPE")
        (arrays,) = records
        if FILE in arrays:
            paths = []
            for name in (FILE, COMPANION):
                if name in arrays:
                    paths.append(folder / name)
                    paths[-1].write_bytes(_array_as_bytes(arrays[name]))
            return paths
        return self._network_files(arrays, self._n_examples(content), folder)

    def _network_files(self, arrays: ArrayRecord, n_examples: float | None, folder: Path) -> list[Path]:
        """Write a network of the architecture with the arrays of a reply, and how many examples it is of."""
        if self.module is None:
            text = "replied the arrays of a network, and the strategy has no architecture"
            raise InputError("reply", text, "give it `module=`, or reply `model_record(model)`", "E-NEEDED")
        from consilience.networks.torch_modules import make_template

        template: Any = make_template(self.module)
        try:
            template.load_state_dict(arrays.to_torch_state_dict())
        except (RuntimeError, ValueError, TypeError) as error:
            lines = str(error).splitlines()
            raise InputError("reply", f"has other arrays than the architecture: {lines[-1].strip()}") from error
        path = folder / "network.safetensors"
        example = self.options.get("example")
        described = (
            template if n_examples is None else cs.describe(template, n_observations=n_examples, example=example)
        )
        cs.save(described, path)
        return sorted(folder.iterdir(), key=lambda one: one != path)

    def _n_examples(self, content: RecordDict) -> float | None:
        """Return how many examples a reply says it is of; None where it does not."""
        stated = [
            record[self.weighted_by_key] for record in content.metric_records.values() if self.weighted_by_key in record
        ]
        number = stated[0] if stated else None
        return float(number) if isinstance(number, int | float) and 0 < number < float("inf") else None


def _state_record(fusion: Fusion) -> ArrayRecord:
    """Return the state dict of a fused network."""
    model: Any = fusion.model
    return ArrayRecord(model.state_dict())


def _bytes_as_array(data: bytes) -> Array:
    return Array(np.frombuffer(data, dtype=np.uint8))


def _array_as_bytes(array: Array) -> bytes:
    """Return the bytes in an array; raise InputError for one that holds others."""
    try:
        values = array.numpy()
    except (ValueError, OSError, EOFError) as error:
        raise InputError("reply", "has a file that is no array of bytes", code="E-TYPE") from error
    if values.dtype != np.uint8 or values.ndim != 1:
        raise InputError("reply", f"has a file of type {values.dtype}, expected bytes", code="E-TYPE")
    return bytes(values.tobytes())

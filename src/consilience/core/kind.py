"""What a kind of model supplies to the pipeline: read, check, describe; then match, average, rebuild.

``consilience.api.kinds`` is the table of all kinds, and the only place that asks of which kind a model is. The table
imports the ``kind`` file of every room and nothing else of it: a stage imports what it needs when it is asked for.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from consilience.checks import Json
from consilience.core.arguments import OF_NETWORKS, WHOSE
from consilience.core.inputs import NamedInput, defined_in, name_inputs
from consilience.core.progress import Progress
from consilience.core.site_losses import RowLosses
from consilience.core.verdict import FUSED
from consilience.errors import InputError, OptionError, Problem, UnsupportedError
from consilience.files.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    from consilience.core.agreement import Doubt
    from consilience.core.evaluation import Evaluation
    from consilience.core.fusion import Fusion

Facets = Mapping[str, str | None]
"""What must agree between the contributions of a round, by what to call it; None where a file does not say."""

WIDTHS = "widths"
"""The facet that only some methods need to agree."""


def facet(value: Any) -> str | None:
    """Return a JSON value as a facet: a text that is equal for equal values; None for None."""
    return None if value is None else json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True, eq=False)
class Request:
    """Everything that ``fuse`` or ``check`` was called with, inputs opened and named."""

    inputs: tuple[NamedInput, ...]  # the models
    method: Any  # a name, a method object, or None for the recommended one
    # Options of the method, and arguments for some kinds only (an example, a symmetry, ...), by name
    options: Mapping[str, Any]
    # weights, n_observations: as in ``fuse``
    weights: Any
    n_observations: Any
    # rng, seed: the generator, and the seed that it was made of where there was one
    rng: np.random.Generator
    seed: int | None
    progress: Progress  # what is told of the steps
    engine: Any = None  # where shards are worked on
    only_check: bool = False  # whether nothing will be fused, so that arrays may stay in their files
    is_sharded: bool = False  # whether the models are shards by how they are written; then there are no inputs
    source: Any = None  # the models as they were handed in, for shards, which are not opened one by one


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs that were read, checked and described, and what fuses them."""

    problems: Sequence[str]  # everything that is wrong with the inputs, a line each
    fuse: Callable[[], Fusion]  # matches, averages and rebuilds; called only where nothing is wrong
    error: InputError | OptionError | None = None  # what reading the inputs or their options ended with, where it did
    doubts: Sequence[Doubt] = ()  # why the inputs may not mean the same

    @classmethod
    def failed(cls, error: InputError | OptionError) -> Prepared:
        """Return that nothing can be fused, and why."""
        return cls((), nothing_to_fuse, error)

    @classmethod
    def checked(cls, problems: Sequence[str], doubts: Sequence[Doubt] = ()) -> Prepared:
        """Return what was found wrong, or in doubt, with inputs that were only to be checked."""
        return cls(problems, nothing_to_fuse, None, doubts)


def nothing_to_fuse() -> Fusion:
    """Raise: inputs with problems, or that were only checked, are never fused."""
    raise AssertionError("inputs with problems, or that were only checked, are not fused")


@dataclass(frozen=True)
class Inspection:
    """What the header of a file says: as JSON values, as lines of a name and a text, and in plain sentences.

    The sentences are those of `core.inspection.plain_words`: what it is, from how many observations, what it can be
    fused with, what to do next.
    """

    document: Mapping[str, Any]
    rows: Sequence[tuple[str, str]]
    plain: Sequence[str]


@dataclass(frozen=True)
class FileFormat:
    """A format of files."""

    name: str  # what the library calls it, such as "posterior"
    tag: str | None  # what the files' documents state as their format; None for files without a document
    called: str  # what messages call such a file
    # loader, inspector: functions of a file, "module:name", that read what is in it, and say what is inside from the
    # header alone
    loader: str
    inspector: str
    is_companion: bool = False  # whether it travels beside the file of a model and is none itself

    def load(self, file: SafetensorsFile) -> Any:
        """Return what is in a file."""
        return resolve_name(self.loader)(file)

    def inspect(self, file: SafetensorsFile) -> Inspection:
        """Return what the header of a file says."""
        inspection: Inspection = resolve_name(self.inspector)(file)
        return inspection


@dataclass(frozen=True)
class Extent:
    """Where the data that a site's model describes lie, and the range of the variances in it."""

    # mean, deviation: length D, of all its components together
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    # lowest, highest: length D, least and greatest component means
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    variances: tuple[float, float]  # least and greatest eigenvalue of a component's covariance


@dataclass(frozen=True)
class SiteFacts:
    """What a round needs to know of one site's contribution."""

    facets: Facets  # what must agree with the others
    components: int = 0  # components of a posterior; 0 for networks
    # Size of each array, as its root mean square: sites are ordered by them, and some kinds bound them
    scales: Mapping[str, float] = field(default_factory=dict)
    # Names of the scales that may not be far larger than those of most sites
    bounded_scales: frozenset[str] = frozenset()
    extent: Extent | None = None  # where its components lie, for models of data that have a place
    n_observations: float | None = None  # as the site states them; None where it does not


def root_mean_square(values: Any) -> float:
    """Return the root mean square of an array of numbers, 0 of an empty one, without overflow on the way."""
    numbers = np.asarray(values, dtype=np.float64)
    largest = float(np.abs(numbers).max(initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.mean((numbers / largest) ** 2)))


def refuse_parameters(parameters: Mapping[str, Json]) -> None:
    """Raise OptionError for hyper-parameters given for a model that rebuilds no estimator."""
    if parameters:
        raise OptionError(", ".join(parameters), "is for statistics of estimators; a posterior says all itself")


def refuse_statements(model: object, stated: Mapping[str, Any]) -> None:
    """Raise OptionError for arguments of `save` that only statistical models take, given for a network.

    A number of observations is left unread there, as it always was.
    """
    if meant_for_others := sorted(set(stated) - {"n_observations"}):
        text = f"is for statistical models, and a {type(model).__name__} is none; leave it out"
        raise OptionError(", ".join(meant_for_others), text)


def ensemble_is_no_file(method: str) -> tuple[str, str]:
    """Return why a method that keeps all models writes no file, and what to use instead."""
    return "an ensemble is its members", f"keep the sites' files, or use method {method!r}"


@dataclass(frozen=True)
class Saving:
    """The arguments of ``consilience.save`` other than a model and a path."""

    features: Any  # what the columns mean
    symmetry: Any  # of a network
    # Further keywords that were given: data, n_observations, sample_weight, classes, example, min_count, ...
    stated: Mapping[str, Any]
    provenance: Mapping[str, Json] | None  # of a fused model; None for any other


@dataclass(frozen=True)
class Kind(ABC):
    """A kind of model: how it is recognised, and what each stage of the pipeline is for it."""

    name: ClassVar[str]
    formats: ClassVar[tuple[FileFormat, ...]]
    no_file: ClassVar[tuple[str, str]]
    """Why a method that keeps all models writes no file of this kind, and what to do instead."""
    packages: ClassVar[frozenset[str]]
    """Packages that define classes of such models; of ours the rooms, "consilience.networks"."""
    takes_containers: ClassVar[bool] = False
    """Whether mappings and tuples may be such models."""
    statements: ClassVar[tuple[str, ...]] = ()
    """Options of ``fuse`` that say of a mapping of arrays, or of a plain checkpoint, that it is such a model."""
    instead_of_rebuilding: ClassVar[Mapping[str, str]] = {}
    """What to do in place of ``rebuild``, by the name of a class."""
    title: ClassVar[str]
    """What such models are called, in the plural."""
    keywords: ClassVar[tuple[str, ...]] = ()
    """Keywords of ``fuse`` that are for models of this kind only."""
    expands: ClassVar[tuple[str, ...]] = ()
    """Endings of files of others of which several are one model."""
    described_by: ClassVar[frozenset[str]] = frozenset(("n_observations", "min_count"))
    """Keywords of ``consilience.describe`` that its models take."""
    sites_are_candidates: ClassVar[bool] = False
    """Whether a site's own model may be taken in place of the fused one, where sites choose."""
    bounds_claims: ClassVar[bool] = False
    """Whether a round bounds how many observations a site may claim: where they are weights, not part of a sum."""
    is_listed: ClassVar[bool] = True
    """Whether a folder of such files is a list of models."""

    @property
    @abstractmethod
    def methods(self) -> tuple[type[Any], ...]:
        """Every method that fuses such models, the recommended one first."""

    @final
    def refuse_foreign(self, stated: Iterable[str]) -> None:
        """Raise OptionError for a keyword of ``consilience.describe`` that is for models of other kinds."""
        for name in stated:
            if name not in self.described_by:
                whose = WHOSE.get(name, "statistical models")
                if whose == "networks" and not self.described_by.isdisjoint(OF_NETWORKS):
                    raise OptionError(name, f"is not for {self.title}; leave it out")
                raise OptionError(name, f"is for {whose}, and this model is none; leave it out")

    def method_of_round(
        self, options: Mapping[str, Any], *, allow_single: bool, asks_sites: bool
    ) -> tuple[str | None, Mapping[str, Any]]:
        """Return the method of a round whose plan names none, and further options: the recommended one, None.

        Parameters
        ----------
        options : mapping of str to value
            Options of the plan.
        allow_single : bool
            Whether a site's own model may be published as the fused one.
        asks_sites : bool
            Whether sites then choose among fused candidates.

        Raises
        ------
        OptionError
            Where the recommended method could only take one site's model.
        """
        del options, allow_single, asks_sites
        return None, {}

    @final
    def recognises(self, models: Sequence[object]) -> list[bool]:
        """Return for each object in memory whether it is a model of this kind, or a fusion of such."""
        near = [position for position, model in enumerate(models) if self.may_be(model)]
        known = self.are_models([models[position] for position in near]) if near else []
        is_model = [False] * len(models)
        for position, is_known in zip(near, known, strict=True):
            is_model[position] = is_known
        return is_model

    def may_be(self, model: object) -> bool:
        """Return whether an object may be a model of this kind, by what defines its class: nothing is imported."""
        is_container = self.takes_containers and isinstance(model, Mapping | tuple)
        return is_container or not self.packages.isdisjoint(defined_in(model))

    @abstractmethod
    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return for each object that may be a model of this kind whether it is one, or a fusion of such."""

    def expands_path(self, path: str) -> bool:
        """Return whether a path is of what others write, and `expand` is asked: by default by its ending."""
        return path.endswith(self.expands)

    def expand(self, models: Any) -> Any:
        """Return models with what stands for several of this kind as a list or a mapping; all others as they are.

        Asked where a path among them is one that `expands_path` says.
        """
        return models

    def is_plain(self, file: SafetensorsFile) -> bool:
        """Return whether a safetensors file without a document is a model of this kind, by the names of its tensors.

        Checkpoints of networks need not be recognised: they are what any other such file is.
        """
        del file
        return False

    def pack(self, path: Path, target: Path) -> bool:
        """Write what is at a path, and no file of ours, to `target` as a file that can be sent; return whether it was.

        False, and nothing written, for any other path.
        """
        del path, target
        return False

    @abstractmethod
    def make_method(self, method: Any, options: Mapping[str, Any]) -> Any:
        """Return the method of a name with these options, a method object as it is, or the recommended one for None.

        Raises OptionError for a name, an option or a value that does not exist, saying which do.
        """

    @abstractmethod
    def prepare(self, request: Request) -> Prepared:
        """Read, check and describe the inputs; raises OptionError for a method or an option that does not exist."""

    @abstractmethod
    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Return the comparison of a fused model with a local one on labelled or unlabelled data."""

    def losses(self, models: Sequence[Any], data: Any, module: Any = None) -> RowLosses:
        """Return the losses of models on a site's held-out rows, of which the first is the site's own.

        By default one minus another's scores as `evaluate` pairs them: minus log densities, where larger is better.
        """
        named = name_inputs(list(models))
        rows, criterion, is_share = [], "", False
        data, labels = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        for one in named[1:]:
            compared = self.evaluate(one, named[0], data, labels, module)
            first, paired = compared.scores[0], compared.difference.rows
            if paired is None:
                raise UnsupportedError("held_out", f"{compared.what}s have no score of single rows")
            is_share = first.name == "accuracy"  # in percent
            if is_share:
                criterion, losses = "error", 1.0 - paired / 100.0
            else:
                criterion = f"minus {first.name}" if first.larger_is_better else first.name
                losses = -paired if first.larger_is_better else paired
            rows.append(losses)
        values = np.stack([rows[0][1], *(fused for fused, _ in rows)])
        return RowLosses(criterion, values, values, is_share=is_share)

    def candidates(self, fusion: Any) -> dict[str, Any]:
        """Return the models of a fusion among which sites may choose, by name: by default the fused one alone."""
        return {FUSED: fusion}

    def with_candidate(self, fusion: Any, name: str) -> Any:
        """Return a fusion with one of its candidates as the fused model."""
        del name
        return fusion

    def own_models(self, fusion: Any) -> dict[str, Any]:
        """Return the models that went into a fusion, by site."""
        return {local.name: local.value for local in fusion.inputs}

    def observations(self, fusion: Any) -> dict[str, float]:
        """Return how much every site counts, where the fusion knows it of all."""
        said = {local.name: getattr(local.value, "n_observations", None) for local in fusion.inputs}
        return {name: float(n) for name, n in said.items() if n is not None and n > 0}

    @abstractmethod
    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return what a round needs to know of a site's file, every value checked.

        Raises InputError for files that cannot be fused.
        """

    def withhold(self, file: SafetensorsFile, target: Path, min_count: float) -> Problem | None:
        """Write what of a site's file may leave it to `target`, where that is not all, and return what may not.

        None, and nothing written, where all of it may. Raises InputError where nothing would be left.
        """
        del file, target, min_count
        return None

    def differencing(self, file: SafetensorsFile) -> str | None:
        """Return why publishing a file besides an earlier one discloses a single site; None where it does not."""
        del file
        return None

    def has_option(self, name: str) -> bool:
        """Return whether `fuse` may take an option of this name without a method."""
        del name
        return False

    @abstractmethod
    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused file and those of its sites."""

    @abstractmethod
    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Write a model to a file that can be fused; see ``consilience.save``."""

    @abstractmethod
    def digest_of(self, model: Any) -> str:
        """Return the digest of a model's contents, by which a fused one is known again; see `bind_provenance`.

        Raises InputError or UnsupportedError for what is no model of the kind, or does not say all itself.
        """

    def describe(self, model: Any, data: Any, **stated: Any) -> Any:
        """Return what a site says of a model: a posterior, or a network with its description.

        `stated` are the keywords of ``consilience.describe`` that were given. Raises UnsupportedError for a kind whose
        models say all themselves.
        """
        del data, stated
        raise UnsupportedError(f"a {type(model).__name__}", "says all that it knows itself", "save it")

    def describe_file(self, path: Path, module: Any, data: Any, *, is_rewritten: bool, **stated: Any) -> Any:
        """Return a site's description of the model in a file, to be written next to that file or with the model anew.

        `module` is of its architecture, or a function that makes one; `data` and `stated` are as
        ``consilience.describe`` takes them. Unless the model is written again, only its description is, which is bound
        to the file as it is. Raises UnsupportedError for a kind whose models say all themselves, and FileFormatError
        for what is no file of a model.
        """
        del module, data, is_rewritten, stated
        SafetensorsFile(path).header()
        raise UnsupportedError(path, "is no network: it says all that it knows itself")

    def rebuild(self, described: Any, parameters: Mapping[str, Json]) -> Any:
        """Return the model that a posterior, statistics or draws describe, with these hyper-parameters changed.

        Raises UnsupportedError for what describes no model, and OptionError for hyper-parameters that it does not have.
        """
        del parameters
        from consilience.core.fusion import Fusion  # here, so that the table of kinds needs no results

        instead = "take fusion.model" if isinstance(described, Fusion) else "describe it first (consilience.describe)"
        name, text = type(described).__name__, "is no Posterior and no Statistics, which rebuild takes"
        raise UnsupportedError(f"a {name}", text, self.instead_of_rebuilding.get(name, instead), "E-REBUILD")

    def writes(self, model: object) -> bool:
        """Return whether `save` takes an object: a model of this kind, or what travels beside one."""
        return self.recognises([model])[0]

    def has_method(self, name: object) -> bool:
        """Return whether a method of this name fuses models of this kind, as ``"auto"``, the recommended one, does."""
        return name == "auto" or any(method.name == name for method in self.methods)

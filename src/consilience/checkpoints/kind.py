"""LoRA adapters as a kind of model, for the table of kinds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.checks import Json
from consilience.core.inputs import NamedInput, distinct_stems
from consilience.core.kind import FileFormat, Inspection, Kind, Prepared, Request, Saving, SiteFacts
from consilience.errors import InputError, OptionError, Problem, UnsupportedError
from consilience.files.document import ADAPTER
from consilience.files.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    from consilience.checkpoints.lora.adapter import LoraAdapter
    from consilience.core.evaluation import Evaluation


class Adapters(Kind):
    """LoRA adapters of one base: folders of peft, files of kohya's trainer and of diffusers."""

    name = "adapters"
    title = "LoRA adapters"
    formats = (
        FileFormat(
            "adapter",
            ADAPTER,
            "an adapter file",
            "consilience.checkpoints.lora.adapter:load_adapter",
            "consilience.checkpoints.lora.inspect:inspect_adapter",
        ),
    )
    no_file = ("every method for adapters writes a file", "")
    packages = frozenset(("consilience.checkpoints",))

    @property
    def methods(self) -> tuple[type[Any], ...]:
        """Every method for adapters."""
        from consilience.checkpoints.lora.methods import ADAPTER_METHODS

        return ADAPTER_METHODS

    def expands_path(self, path: str) -> bool:
        """Return whether a path is a folder of an adapter; files are recognised when they are opened."""
        return os.path.isdir(path) and _foreign_adapter(path) is not None

    def expand(self, models: Any) -> Any:
        """Return adapters in folders read, in a mapping by the stems of their paths."""
        from consilience.checkpoints.lora.adapter import LoraAdapter

        def read(model: Any) -> Any:
            is_path = isinstance(model, str | Path)
            return LoraAdapter.read(model) if is_path and self.expands_path(str(model)) else model

        if isinstance(models, Mapping):
            return {name: read(model) for name, model in models.items()}
        if not isinstance(models, Sequence) or isinstance(models, str):
            return models
        if not all(isinstance(model, str | Path) for model in models):
            return [read(model) for model in models]
        return {
            name: read(model) for name, model in zip(distinct_stems([str(one) for one in models]), models, strict=True)
        }

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which objects are adapters, or fusions of such."""
        from consilience.checkpoints.lora.adapter import LoraAdapter
        from consilience.checkpoints.lora.fusion import AdapterFusion

        return [isinstance(model, LoraAdapter | AdapterFusion) for model in models]

    def make_method(self, method: Any, options: Mapping[str, Any]) -> Any:
        """Return a method; see `Kind.make_method`."""
        from consilience.checkpoints.lora.methods import make_adapter_method

        return make_adapter_method(method, options)

    def prepare(self, request: Request) -> Prepared:
        """Read and check adapters."""
        from consilience.checkpoints.lora.fuse import prepare_fusion

        return prepare_fusion(request)

    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Raise: an adapter answers nothing without its base."""
        del local, data, labels, module
        remedy = "put each into its base (`consilience merge BASE+ADAPTER`), and compare these with their own metric"
        raise UnsupportedError(fused.label, "is an adapter, which answers nothing without its base", remedy)

    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return what a round needs to know of an adapter file."""
        from consilience.checkpoints.lora.fuse import sizes_of

        if companion is not None:
            raise InputError(file, "has an adapter, of which no Fisher information is taken", "send it alone")
        count, size = sizes_of(file)
        facets = {"kind": self.name, "Fisher information": "none"}
        return SiteFacts(facets, count, {"products": size}, frozenset(("products",)))

    def withhold(self, file: SafetensorsFile, target: Path, min_count: float) -> Problem | None:
        """Raise for adapters of too few observations; see `Kind.withhold`."""
        from consilience.checkpoints.lora.files import read_adapter_header

        del target
        number = read_adapter_header(file).n_observations
        if number is not None and number < min_count:
            text = f"is about {number:g} observations, fewer than {min_count:g}: nothing may leave"
            raise InputError(file, text, "`min_count=0` keeps it", "E-FEW")
        return None

    def is_plain(self, file: SafetensorsFile) -> bool:
        """Return whether a file has the names of factors; see `Kind.is_plain`."""
        from consilience.checkpoints.lora.names import read_names

        return read_names(file.header().shapes) is not None

    def inspect_foreign(self, path: Path) -> Inspection | None:
        """Return the inspection of what other programs wrote; of folders of peft, files of kohya and diffusers."""
        if (adapter := _foreign_adapter(str(path))) is None:
            return None
        from consilience.checkpoints.lora.inspect import inspect_foreign_adapter

        return inspect_foreign_adapter(adapter)

    def pack(self, path: Path, target: Path) -> bool:
        """Write the adapter of another program as a file that can be sent; see `Kind.pack`."""
        if _foreign_adapter(str(path)) is None:
            return False
        from consilience.checkpoints.lora.adapter import LoraAdapter

        LoraAdapter.read(path).pack(target)
        return True

    def describe(self, model: Any, data: Any, **stated: Any) -> LoraAdapter:
        """Return an adapter with its number of observations; see `Kind.describe`."""
        from dataclasses import replace

        from consilience.checkpoints.lora.fusion import AdapterFusion

        stated.pop("min_count", None)
        adapter: LoraAdapter = model.adapter if isinstance(model, AdapterFusion) else model
        number = stated.pop("n_observations", None)
        if data is not None:
            raise OptionError("data", "of adapters are not looked at; give n_observations")
        return adapter if number is None else replace(adapter, n_observations=float(number))

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Write an adapter file."""
        self.describe(model, **{"data": None, **saving.stated}).pack(path, saving.provenance)

    def digest_of(self, model: Any) -> str:
        """Return the digest of an adapter; see `Kind.digest_of`."""
        digest: str = self.describe(model, None).digest
        return digest

    def rebuild(self, described: Any, parameters: Mapping[str, Json]) -> Any:
        """Return an adapter, which describes itself; see `Kind.rebuild`."""
        from consilience.checkpoints.lora.adapter import LoraAdapter

        if not isinstance(described, LoraAdapter):
            return super().rebuild(described, parameters)
        if parameters:
            raise OptionError(", ".join(parameters), "is for statistics of estimators; an adapter says all itself")
        return described

    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused adapter."""
        if given := sorted(f"--{name.removesuffix('s')}" for name, value in shown.items() if value):
            raise OptionError(", ".join(given), "shows nothing of adapters; leave it out")
        from consilience.checkpoints.lora.fuse import AdapterReading
        from consilience.checkpoints.lora.fusion import write_page
        from consilience.core.provenance import read_fused

        _, record, _ = read_fused(fused, sites, AdapterReading(0.0).read)
        write_page(page, record)


def _foreign_adapter(path: str) -> Path | None:
    """Return the folder or file of an adapter as other programs write it; None for any other path."""
    from consilience.checkpoints.lora.files import adapter_at

    found = adapter_at(Path(path))
    return None if found is None or (os.path.isfile(found) and SafetensorsFile(found).format == ADAPTER) else found

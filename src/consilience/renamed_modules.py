"""Modules whose documented names changed in 0.2: the old names still import, with a DeprecationWarning, until 0.3.

Rooms by layer (methods, models, landscape, ...) became rooms by kind of model: docs/house.md. What follows is one
table of the old names and a finder that Python asks only for modules that it has not found itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_LANDSCAPE = "consilience.networks.landscape"
_REPAIR = "consilience.networks.repair"

RENAMED: Mapping[str, Sequence[str]] = {
    "consilience.evaluation": (
        "consilience.api.evaluate",
        "consilience.core.paired",
        "consilience.posteriors.evaluation",
        "consilience.networks.evaluation",
        "consilience.bayesian.predictive",
        "consilience.bayesian.predictive_scores",
    ),
    "consilience.io": (),
    "consilience.io.limits": ("consilience.files.limits",),
    "consilience.landscape": (
        _LANDSCAPE,
        _REPAIR,
        "consilience.bayesian.predictive_barrier",
        "consilience.bayesian.posterior_paths",
    ),
    "consilience.learners.bayesian_networks": ("consilience.bayesian.learners.mean_field",),
    "consilience.matching.conjugate": ("consilience.matching.conjugate_groups",),
    "consilience.matching.places": ("consilience.matching.site_by_site",),
    "consilience.methods": (
        "consilience.posteriors.methods",
        "consilience.posteriors.method",
        "consilience.core.status",
        "consilience.core.progress",
        "consilience.networks.method",
        "consilience.networks.methods",
        "consilience.networks.methods.baselines",
        "consilience.bayesian.methods",
    ),
    "consilience.models": (
        "consilience.posteriors.adapters.table",
        "consilience.posteriors.adapters.base",
        "consilience.posteriors.describe",
        "consilience.posteriors.rebuild",
    ),
    "consilience.models.bayesian_adapters": ("consilience.bayesian.readers.table",),
    "consilience.models.kernels": ("consilience.posteriors.sparse_gp.kernels",),
    "consilience.models.topic_evaluation": ("consilience.posteriors.topics.document_completion",),
    "consilience.networks.axes": ("consilience.networks.symmetry.axes",),
    "consilience.networks.gaussian": ("consilience.bayesian.gaussian_arrays",),
    "consilience.networks.transport": ("consilience.networks.symmetry.transport",),
    "consilience.result": (
        "consilience.core.fusion",
        "consilience.posteriors.fusion",
        "consilience.networks.fusion",
        "consilience.bayesian.fusion",
    ),
}
"""Old name of a module: the modules that have what it had, in the order in which they are asked."""


class RenamedModules(MetaPathFinder, Loader):
    """Makes an old module a window on the new ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module of an old name; None for any other name."""
        del path, target
        if fullname not in RENAMED:
            return None
        has_children = any(name.startswith(f"{fullname}.") for name in RENAMED)
        return ModuleSpec(fullname, self, is_package=has_children)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the empty module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and look up every attribute in the new modules."""
        old, places = module.__name__, RENAMED[module.__name__]
        where = " and ".join(places) or "consilience.files"
        warnings.warn(
            f"{old} is deprecated since 0.2 and goes in 0.3; what it had is in {where}, or in consilience itself"
            " [W-DEPRECATED]",
            DeprecationWarning,
            stacklevel=_OUTSIDE,
        )

        def attribute(name: str) -> Any:
            for place in places:
                home = import_module(place)
                if hasattr(home, name):
                    return getattr(home, name)
            raise AttributeError(f"module {old!r} has no attribute {name!r}")

        module.__getattr__ = attribute  # type: ignore[method-assign]


_OUTSIDE = 2
"""Level of the warning: Python leaves its own frames of the import out, so this is the import statement."""


def install() -> None:
    """Let old names of modules be imported."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())

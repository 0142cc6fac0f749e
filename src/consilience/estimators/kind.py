"""Estimators that are fused by their sums as a kind of model, for the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.catalogue import suggestion
from consilience.checks import Json
from consilience.core.arguments import OF_STATISTICAL_MODELS, OF_SUMS
from consilience.core.kind import FileFormat, Kind, Prepared, Request, Saving, SiteFacts, facet, root_mean_square
from consilience.errors import InputError, OptionError, Problem
from consilience.files.document import STATISTICS

if TYPE_CHECKING:
    from consilience.core.evaluation import Evaluation
    from consilience.core.inputs import NamedInput
    from consilience.estimators.methods import Sums
    from consilience.estimators.statistics import Statistics
    from consilience.files.safetensors_file import SafetensorsFile


class Estimators(Kind):
    """Regressions, classifiers, covariances and scalers whose sufficient statistics add up."""

    name = "estimators"
    title = "estimators"
    described_by = Kind.described_by | {*OF_STATISTICAL_MODELS, *OF_SUMS}
    formats = (
        FileFormat(
            "statistics",
            STATISTICS,
            "a statistics file",
            "consilience.estimators.files:load_statistics",
            "consilience.estimators.inspect:inspect_statistics",
        ),
    )
    no_file = ("every method for estimators writes a file", "")
    packages = frozenset(("sklearn", "statsmodels", "laplace", "consilience.estimators"))

    @property
    def methods(self) -> tuple[type[Any], ...]:
        """The one there is: sums are added."""
        from consilience.estimators.methods import ESTIMATOR_METHODS

        return ESTIMATOR_METHODS

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which models are estimators of the table, their statistics, or fusions of such."""
        from consilience.estimators.describe import is_estimator
        from consilience.estimators.fusion import EstimatorFusion
        from consilience.estimators.statistics import Statistics

        return [isinstance(model, Statistics | EstimatorFusion) or is_estimator(model) for model in models]

    def make_method(self, method: Any, options: Mapping[str, Any]) -> Sums:
        """Return the method; hyper-parameters of estimators are no options of it. See `Kind.make_method`."""
        from consilience.estimators.methods import make_estimator_method

        own = {name: value for name, value in options.items() if name == "robust" or not self.has_option(name)}
        if unknown := sorted(own.keys() - {"robust"}):
            known = ("robust", "min_count", *self._hyper_parameters())
            text = f"is no hyper-parameter of an estimator{suggestion(unknown[0], known)}"
            raise OptionError(unknown[0], text, "`consilience methods sums` lists what sums take", "E-OPTION")
        return make_estimator_method(method, own)

    def prepare(self, request: Request) -> Prepared:
        """Read, check and describe estimators."""
        from consilience.estimators.fuse import prepare_estimators

        return prepare_estimators(request)

    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Compare two estimators on rows, by the score of their class."""
        from consilience.estimators.evaluate import evaluate_estimators  # here, so that fusing starts without it

        return evaluate_estimators(fused, local, data, labels, module)

    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return what a round needs to know of a statistics file."""
        from consilience.estimators.adapters.table import adapter_of_kind

        if companion is not None:
            raise InputError(file, "has sums, of which no Fisher information is taken", "send it alone")
        from consilience.estimators.files import load_statistics

        statistics = load_statistics(file)
        adapter = adapter_of_kind(statistics.kind)
        classes, design = statistics.classes, statistics.design.to_json()
        facets = {
            "kind": self.name,
            "estimator": statistics.kind,
            "steps": facet([[step.name, step.kind, dict(step.parameters)] for step in statistics.steps]),
            "columns": facet(statistics.n_columns),
            "targets": facet(statistics.target_shape),
            "labels of classes": None if classes is None else facet(classes.kinds()),
            "what sums depend on": facet({name: statistics.parameters.get(name) for name in adapter.sum_parameters}),
            "Fisher information": "none",
            "outcome": facet(design.get("outcome")),
            "levels of factors": facet(design.get("factors")),
            "constants of transforms": facet(design.get("constants")),
            "offset, exposure and weights": facet(sorted(design.get("extra", {}))),
            "names of columns": facet(statistics.features.names),
            **{name: facet(getattr(statistics.features, name)) for name in ("units", "scaling")},
        }
        scales = {name: root_mean_square(values) for name, values in statistics.tensors()}
        return SiteFacts(facets, statistics.n_components, scales, n_observations=statistics.n_observations)

    def withhold(self, file: SafetensorsFile, target: Path, min_count: float) -> Problem | None:
        """Write statistics without classes of too few rows; see `Kind.withhold`."""
        from consilience.estimators.describe import withhold
        from consilience.estimators.files import read_statistics, write_statistics

        statistics, provenance = read_statistics(file)
        try:
            left, withheld = withhold(statistics, min_count)
        except InputError as error:
            raise InputError(problem.about(file) for problem in error.problems) from error
        stays = [f"{one.subject} {one.text}" for one in withheld]
        if len(left.moments) < len(statistics.moments):
            stays.append(
                "the moments of rows without their weights stay here: with the weighted ones they disclose single rows"
            )
        if not stays:
            return None
        write_statistics(target, left, provenance)
        return Problem(file, "; ".join(stays), "`min_count=0` keeps them")

    def differencing(self, file: SafetensorsFile) -> str | None:
        """Return that sums of sites were added to or removed from others; see `Kind.differencing`."""
        from consilience.estimators.files import read_header
        from consilience.estimators.removal import differencing_of

        provenance = read_header(file)[0].provenance
        return differencing_of(None if provenance is None else provenance.method)

    def has_option(self, name: str) -> bool:
        """Return whether an option is a hyper-parameter of some estimator."""
        return name in self._hyper_parameters()

    def _hyper_parameters(self) -> frozenset[str]:
        """Return the names of all hyper-parameters of all estimators."""
        from consilience.estimators.adapters.table import ESTIMATORS
        from consilience.estimators.hyper_parameters import names_of_table  # here, since it imports scikit-learn

        return frozenset(names_of_table((adapter.module, adapter.class_name) for adapter in ESTIMATORS))

    def describe(self, model: Any, data: Any, **stated: Any) -> Statistics:
        """Return the statistics of an estimator; see `Kind.describe`."""
        from consilience.estimators.describe import describe
        from consilience.estimators.fusion import EstimatorFusion

        return describe(model.statistics if isinstance(model, EstimatorFusion) else model, data, **stated)

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Describe an estimator and write its statistics."""
        from consilience.estimators.files import write_statistics

        write_statistics(
            path, self.describe(model, **{"data": None, **saving.stated}, features=saving.features), saving.provenance
        )

    def digest_of(self, model: Any) -> str:
        """Return the digest of an estimator's statistics; see `Kind.digest_of`."""
        from consilience.estimators.inputs import statistics_of

        return statistics_of(model).digest

    def rebuild(self, described: Any, parameters: Mapping[str, Json]) -> Any:
        """Return the estimator that sums give; see `Kind.rebuild`."""
        from consilience.estimators.rebuild import rebuild
        from consilience.estimators.statistics import Statistics

        if not isinstance(described, Statistics):
            return super().rebuild(described, parameters)
        return rebuild(described, parameters)

    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused statistics file."""
        if given := sorted(f"--{name.removesuffix('s')}" for name, value in shown.items() if value):
            raise OptionError(", ".join(given), "shows nothing of estimators; leave it out")
        from consilience.estimators.report import content_of_files, write_page  # here, so that fusing needs no pages

        write_page(page, content_of_files(fused, sites))

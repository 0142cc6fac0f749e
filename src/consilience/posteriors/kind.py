"""Posteriors as a kind of model, for the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.checks import Json
from consilience.core.arguments import OF_STATISTICAL_MODELS, OF_TOPICS
from consilience.core.inputs import REGISTERED_PACKAGES, defined_in
from consilience.core.kind import (
    FileFormat,
    Kind,
    Prepared,
    Request,
    Saving,
    SiteFacts,
    ensemble_is_no_file,
    facet,
    refuse_parameters,
)
from consilience.errors import InputError, OptionError, Problem
from consilience.files.document import POSTERIOR

if TYPE_CHECKING:
    from consilience.core.evaluation import Evaluation
    from consilience.core.inputs import NamedInput
    from consilience.files.safetensors_file import SafetensorsFile
    from consilience.posteriors.method import Method
    from consilience.posteriors.posterior import Posterior


class Posteriors(Kind):
    """Statistical models: mixtures, topic models, hidden Markov models, Gaussian processes."""

    name = "posteriors"
    described_by = Kind.described_by | {*OF_STATISTICAL_MODELS, *OF_TOPICS}
    formats = (
        FileFormat(
            "posterior",
            POSTERIOR,
            "a posterior file",
            "consilience.posteriors.files:load_posterior",
            "consilience.posteriors.inspect:inspect_posterior",
        ),
    )
    title = "posteriors"
    no_file = ensemble_is_no_file("concatenate")
    is_listed = False
    packages = frozenset(("sklearn", "hmmlearn", "gensim", "gpytorch", "consilience.posteriors"))

    @property
    def methods(self) -> tuple[type[Any], ...]:
        """Every method for posteriors."""
        from consilience.posteriors.methods import METHODS

        return METHODS

    def may_be(self, model: object) -> bool:
        """Return whether an object may be a posterior, or of a class for which somebody registered an adapter."""
        return super().may_be(model) or not REGISTERED_PACKAGES.isdisjoint(defined_in(model))

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which models are posteriors, of a library in the table of adapters, or fusions of such."""
        from consilience.core.features import final_model, is_pipeline
        from consilience.posteriors.adapters.table import has_adapter
        from consilience.posteriors.fusion import PosteriorFusion
        from consilience.posteriors.model_ensemble import ModelEnsemble
        from consilience.posteriors.posterior import Posterior

        return [
            isinstance(model, Posterior | PosteriorFusion | ModelEnsemble)
            or has_adapter(final_model(model) if is_pipeline(model) else model)
            for model in models
        ]

    def make_method(self, method: Any, options: Mapping[str, Any]) -> Method:
        """Return a method for posteriors; see `Kind.make_method`."""
        from consilience.posteriors.fuse import recommended_method

        return recommended_method(method, options, {})

    def prepare(self, request: Request) -> Prepared:
        """Read, check and describe posteriors."""
        from consilience.posteriors.fuse import prepare_posteriors

        return prepare_posteriors(request)

    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Compare two models on rows, counts or sequences."""
        if module is not None:
            raise OptionError("module", "is for networks, and these models are none")
        from consilience.posteriors.evaluate import evaluate_posteriors  # here, so that fusing starts without it

        return evaluate_posteriors(fused, local, data, labels)

    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return what a round needs to know of a posterior file."""
        from consilience.posteriors.adapters.table import has_labels
        from consilience.posteriors.admission import extent_of, inadmissible, parameter_scales
        from consilience.posteriors.files import read_posterior
        from consilience.posteriors.posterior import ORIGIN
        from consilience.posteriors.vocabulary import is_topic_posterior

        if companion is not None:
            raise InputError(file, "is a posterior, of which no Fisher information is taken", "send it alone")
        posterior, provenance = read_posterior(file)
        family, features = {"name": posterior.family.name}, posterior.features
        # Topics over other words are aligned by the fusion, not refused, so their number of words may differ.
        has_words = is_topic_posterior(posterior) and features.names is not None
        facets = {
            "kind": "posterior",
            "source": facet(dict(posterior.source)),
            "family": facet(family if has_words else {**family, **posterior.family.config()}),
            "attached arrays": facet(
                {name: [list(a.axes), a.rule] for name, a in posterior.attached.items() if name != ORIGIN}
            ),
            "Fisher information": "none",
            **{
                name: "stated" if getattr(posterior, name) is not None else "not stated"
                for name in ("counts", "weights", "prior")
            },
            "names of columns": None if has_words else facet(features.names),
            **{name: facet(getattr(features, name)) for name in ("units", "scaling")},
            "classes": None if has_labels(posterior) else facet(features.classes),
        }
        if problems := inadmissible(posterior, is_fused=bool(provenance)):
            raise InputError(problem.about(file) for problem in problems)
        n_observations = None if posterior.counts is None else float(posterior.counts.sum())
        scales, extent = parameter_scales(posterior), extent_of(posterior)
        return SiteFacts(facets, posterior.n_components, scales, extent=extent, n_observations=n_observations)

    def withhold(self, file: SafetensorsFile, target: Path, min_count: float) -> Problem | None:
        """Write a posterior without its components of too few observations; see `Kind.withhold`."""
        from consilience.posteriors.files import read_posterior, write_posterior
        from consilience.posteriors.thin_components import (
            nothing_left_in,
            provenance_of_remaining,
            remaining_components,
            withheld_text,
            without_components,
        )

        posterior, provenance = read_posterior(file)
        remaining = remaining_components(posterior, min_count)
        if len(remaining) == posterior.n_components:
            return None
        if problems := nothing_left_in(file, posterior, min_count):
            raise InputError(problems)
        left = without_components(posterior, remaining)
        write_posterior(target, left, provenance_of_remaining(provenance, left.n_components))
        return Problem(file, withheld_text(posterior, min_count), "`min_count=0` keeps them")

    def describe(self, model: Any, data: Any, **stated: Any) -> Posterior:
        """Return the posterior of a model; see `Kind.describe`."""
        from consilience.posteriors.describe import describe

        return describe(model, data, **stated)

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Describe a model and write its posterior."""
        from consilience.posteriors.describe import describe
        from consilience.posteriors.files import write_posterior
        from consilience.posteriors.thin_components import provenance_of_remaining

        posterior = describe(model, features=saving.features, **saving.stated)
        write_posterior(path, posterior, provenance_of_remaining(saving.provenance, posterior.n_components))

    def digest_of(self, model: Any) -> str:
        """Return the digest of a model's posterior; see `Kind.digest_of`."""
        from consilience.posteriors.describe import describe_all

        return describe_all(model).digest

    def rebuild(self, described: Any, parameters: Mapping[str, Json]) -> Any:
        """Return the model of a posterior; see `Kind.rebuild`."""
        from consilience.posteriors.posterior import Posterior
        from consilience.posteriors.rebuild import rebuild

        refuse_parameters(parameters)
        return rebuild(described) if isinstance(described, Posterior) else super().rebuild(described, parameters)

    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused posterior file; `shown` has data and their truth."""
        from consilience.posteriors.report.content import (
            content_of_files,
        )  # here, so that fusing starts without the pages
        from consilience.posteriors.report.page import write_page

        if shown.get("barriers") or shown.get("planes"):
            raise OptionError(f"`barriers=`, `planes=`: for networks only, and {fused} is none")
        write_page(page, content_of_files(fused, sites, shown.get("data"), shown.get("truth")))

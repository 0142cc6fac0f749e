"""Posterior draws as a kind of model, for the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.checks import Json
from consilience.core.inputs import NamedInput
from consilience.core.kind import FileFormat, Kind, Prepared, Request, Saving, SiteFacts, facet, refuse_parameters
from consilience.errors import InputError, OptionError, Problem
from consilience.files.document import DRAWS
from consilience.files.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    from consilience.core.evaluation import Evaluation
    from consilience.draws.draws import Draws


STATEMENTS = ("prior", "constraints", "only", "exchangeable")
"""Options that say of draws what sites do not say themselves."""


class PosteriorDraws(Kind):
    """Draws of subposteriors, from any sampler."""

    name = "draws"
    title = "posterior draws"
    formats = (
        FileFormat(
            "draws",
            DRAWS,
            "a draws file",
            "consilience.draws.files:load_draws",
            "consilience.draws.inspect:inspect_draws",
        ),
    )
    no_file = ("every method for draws writes a file", "")
    packages = frozenset(("arviz", "xarray", "consilience.draws"))
    statements = STATEMENTS
    expands = (".csv", ".nc", ".nc4")

    @property
    def methods(self) -> tuple[type[Any], ...]:
        """Every method for posterior draws."""
        from consilience.draws.methods import DRAWS_METHODS

        return DRAWS_METHODS

    def expand(self, models: Any) -> Any:
        """Return files of CmdStan and ArviZ, and patterns of such, as the draws of sites."""
        from consilience.draws.sampler_files import expand_sampler_files

        return expand_sampler_files(models)

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which models are draws, containers of ArviZ or xarray, or fusions of such."""
        from consilience.draws.containers import is_container
        from consilience.draws.draws import Draws
        from consilience.draws.fusion import DrawsFusion

        return [isinstance(model, Draws | DrawsFusion) or is_container(model) for model in models]

    def make_method(self, method: Any, options: Mapping[str, Any]) -> Any:
        """Return a method; see `Kind.make_method`."""
        from consilience.draws.methods import make_draws_method

        return make_draws_method(method, options)

    def prepare(self, request: Request) -> Prepared:
        """Read, check and relabel draws."""
        from consilience.draws.fuse import prepare_draws

        return prepare_draws(request)

    def evaluate(self, fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any) -> Evaluation:
        """Compare two sets of draws by reference draws, or by a function that gives log-likelihoods."""
        if module is not None:
            raise OptionError("module", "is for networks, and these models are none")
        from consilience.draws.evaluate import evaluate_draws  # here, so that fusing starts without it

        return evaluate_draws(fused, local, data, labels)

    def site_facts(self, file: SafetensorsFile, companion: SafetensorsFile | None) -> SiteFacts:
        """Return what a round needs to know of a draws file."""
        from consilience.draws.checking import value_problems

        if companion is not None:
            raise InputError(file, "has draws, of which no Fisher information is taken", "send it alone")
        from consilience.draws.files import load_draws

        draws = load_draws(file)
        if problems := value_problems(draws):
            raise InputError(problem.about(file) for problem in problems)
        shapes = {name: list(values.shape[2:]) for name, values in sorted(draws.variables.items())}
        constraints = {name: draws.constraints[name].to_json() for name in shapes}
        prior = "a power" if isinstance(draws.prior, float) else draws.prior
        facets = {
            "kind": self.name,
            "variables": facet(shapes),
            "constraints": facet(constraints),
            "prior": facet(prior),
            "power of the likelihood": facet(draws.likelihood_power),
            "exchangeable variables": facet(list(draws.exchangeable)),
            "Fisher information": "none",
        }
        return SiteFacts(facets, draws.n_components)

    def withhold(self, file: SafetensorsFile, target: Path, min_count: float) -> Problem | None:
        """Raise for draws about too few observations; see `Kind.withhold`."""
        from consilience.draws.files import load_draws

        number = load_draws(file).n_observations
        if number is not None and number < min_count:
            text = f"is about {number:g} observations, fewer than {min_count:g}: nothing may leave"
            raise InputError(file, text, "`min_count=0` keeps it", "E-FEW")
        return None

    def describe(self, model: Any, data: Any, **stated: Any) -> Draws:
        """Return draws with their number of observations; see `Kind.describe`."""
        from consilience.draws.checking import value_problems
        from consilience.draws.draws import as_draws
        from consilience.draws.fusion import DrawsFusion

        stated.pop("min_count", None)
        draws = model.draws if isinstance(model, DrawsFusion) else as_draws(model)
        number = stated.pop("n_observations", None)
        if data is not None:
            if isinstance(data, str | Path) or not hasattr(data, "__len__"):
                raise OptionError("data", "of draws are rows, to be counted; give n_observations")
            number = float(len(data)) if number is None else number
        if problems := value_problems(draws):
            raise InputError(problems)
        return draws.stated(n_observations=number)

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Write draws."""
        from consilience.draws.files import write_draws

        write_draws(path, self.describe(model, **{"data": None, **saving.stated}), saving.provenance)

    def digest_of(self, model: Any) -> str:
        """Return the digest of draws; see `Kind.digest_of`."""
        from consilience.draws.draws import as_draws

        return as_draws(model).digest

    def rebuild(self, described: Any, parameters: Mapping[str, Json]) -> Any:
        """Return draws in the container that they came in; see `Kind.rebuild`."""
        from consilience.draws.containers import to_container
        from consilience.draws.draws import Draws

        refuse_parameters(parameters)
        return to_container(described) if isinstance(described, Draws) else super().rebuild(described, parameters)

    def write_report(self, page: Path, fused: SafetensorsFile, sites: Sequence[SafetensorsFile], **shown: Any) -> None:
        """Write a page about a fused draws file."""
        if given := sorted(f"--{name.removesuffix('s')}" for name, value in shown.items() if value):
            raise OptionError(", ".join(given), "shows nothing of posterior draws; leave it out")
        from consilience.draws.report import content_of_files, write_page  # here, so that fusing needs no pages

        write_page(page, content_of_files(fused, sites))

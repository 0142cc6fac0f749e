"""The public functions ``fuse`` and ``check``: one pipeline for every kind of model.

Read, check and describe are a kind's ``prepare``; match, average, rebuild and verdict are what it prepares. ``check``
is the same pipeline up to where matching starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from consilience.api.at_sites import choose_at_sites, refuse_unknown
from consilience.api.kinds import NETWORKS, SHARDS, are_recognised, are_shards, kind_of, list_models
from consilience.core.arguments import KIND_KEYWORDS, NETWORK_KEYWORDS, SHARD_KEYWORDS, FuseKeywords, MethodOptions
from consilience.core.extremes import extreme_number
from consilience.core.inputs import name_inputs
from consilience.core.kind import Kind, Prepared, Request
from consilience.core.progress import seeded, shown
from consilience.errors import ConsilienceError, InputError, OptionError, Problem, UnsupportedError, fault_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike
    from torch import nn

    from consilience.core.fusion import Fusion
    from consilience.core.methods import Options
    from consilience.core.progress import Progress
    from consilience.engines import Engine
    from consilience.files.safetensors_file import SafetensorsFile
    from consilience.networks.symmetry.symmetry import Symmetry
    from consilience.posteriors.sharded.shards import Shards


def fuse(
    models: Mapping[str, Any] | Sequence[Any] | Shards | str | Path,
    method: str | Options | None = None,
    *,
    weights: Mapping[str, float] | ArrayLike | None = None,
    n_observations: Mapping[str, float] | Sequence[float] | str | None = None,
    n_components: int | None = None,
    combine: str | None = None,
    min_count: float | None = None,
    rng: int | np.random.Generator = 0,
    engine: Engine | str | Any = None,
    progress: bool | Progress = False,
    example: Any = None,
    symmetry: Symmetry | str | Path | None = None,
    module: nn.Module | Callable[[], nn.Module] | None = None,
    target: nn.Module | None = None,
    target_widths: Mapping[str, int] | None = None,
    inputs: Any = None,
    fishers: Mapping[str, Any] | Sequence[Any] | None = None,
    descriptions: Mapping[str, Any] | Sequence[Any] | None = None,
    classes: Literal["union"] | None = None,
    output: str | int | None = None,
    reference: int | str | None = None,
    pilot_sites: int | None = None,
    shard_bytes: int | None = None,
    held_out: Mapping[str, Any] | None = None,
    **options: Unpack[MethodOptions],
) -> Fusion:
    """Fuse models that were trained apart into one.

    Parameters
    ----------
    models : mapping of str to model, or sequence of models
        Models by name, or in a list, which gives them names: "model 0", ... for objects, their stems for files. Each is
        a fitted model, a Posterior, or the path of a posterior file, mixed if they describe the same kind of thing;
        topic models that name their words may have different vocabularies, and the fused one has all words. Or
        estimators that are fused by their sums, their Statistics, or files of these. Or posterior draws:
        ``consilience.Draws``, what ArviZ makes of a sampler's output, CmdStan CSV files. Or LoRA adapters of one base:
        folders of peft, files of kohya's trainer or diffusers, ``consilience.LoraAdapter``. Or
        networks: torch modules, their state dicts, Networks, BayesianNetworks, or paths of their files. Of estimators,
        draws and networks a folder or pattern of files, too. Or the posteriors of very many sites, which are not loaded
        as a whole: ``consilience.shards``, a folder, a pattern, packed files, addresses.
    method : str or method object, optional
        A name (see ``consilience methods``) or a method object; ``"auto"`` is the recommended one of every kind, and
        ``"average"``, ``"ensemble"`` or ``"kl"`` mean the same for all that have it. Default: the recommended one, and
        Fisher merging for networks that come with Fisher information.
    weights : array_like of shape (n_models,), or mapping of str to float, optional
        How much each model counts. Default: all the same.
    n_observations : sequence of shape (n_models,), mapping of str to float, or "equal", optional
        Number of observations behind each model, for models that do not record it (GaussianMixture, GaussianHMM,
        CategoricalHMM); ``"equal"`` counts all models alike. Default: what models and files say; where one of them does
        not, the fusion is refused.
    n_components : int, optional
        Number of fused components, for methods that can be told. Default: found.
    combine : {"auto", "hierarchical", "product", "barycenter"}, optional
        What matched posteriors are together: the posterior of what they have in common under random effects between
        sites, their Bayes product with the prior counted once, or their Kullback-Leibler barycenter. Default: the
        method's, mostly ``"auto"``: hierarchical where every model states its prior and its counts, else the
        barycenter; ``details["average"]`` says which and why.
    min_count : float, optional
        Components of statistical models with fewer effective observations are left out (label -1), each by name in
        ``details["withheld"]``; 0 leaves out nothing. Default: 5.
    rng : int or Generator
        Seed or generator; the same seed gives the same bytes.
    engine : Engine, address or client, optional
        Where the work on shards runs: None, here; an address of a Dask scheduler, a ``distributed.Client``, or a
        ``consilience.engines`` object.
    progress : bool or callable
        True shows a bar with an estimate in a terminal or a notebook; a callable is called with (steps done, steps in
        all), or with the seconds that are left too where it takes three arguments.
    example : tensor, tuple of arguments, or dict of keyword arguments, optional
        Of networks: an input that the modules take, to find and to prove which axes move together. Default: one of the
        described shape, or the first of `inputs`.
    symmetry : Symmetry or path, optional
        Of networks: these axes, from ``consilience.symmetry`` or its file, where files do not have them.
    module : Module or function that makes one, optional
        Of networks: the architecture, where the networks are files.
    target : Module, optional
        Of networks: a module whose widths the fused network is to have.
    target_widths : mapping of str to int, optional
        Of networks: units of the fused network by group, in place of `target`.
    inputs : tensor of shape (n_samples, ...), mapping or tuple of tensors, or iterable of batches, optional
        Of networks: unlabelled inputs, for methods that match by activations, for refits, and to compare candidates.
        Several arguments are a mapping by their names, such as a tokenizer returns, or a tuple. Language models are
        compared by the next tokens of these texts.
    fishers : sequence of length n_models, or mapping by name, optional
        Of networks: what ``consilience.fisher`` gave for each, or its files.
    descriptions : sequence of length n_models, or mapping by name, optional
        Of networks: what ``consilience.describe`` found of each, or its files; None for a network without. Default:
        those that Networks carry, and those beside their files.
    classes : "union", optional
        Of networks whose descriptions name different classes: "union" fuses them into one of all their classes.
        Default: networks of different classes are refused.
    output : str or int, optional
        Of networks that return several outputs: the name, or the place in a tuple, of the one that is meant. Default:
        what their descriptions say, else logits, else the last hidden state, else all.
    reference : int or str, optional
        Of networks: number or name of the model whose numbering of units the fused network keeps. Default: chosen by
        content, whatever the order of the models.
    pilot_sites : int, optional
        Of shards: sites in the sample that a fusion starts from. Default: 256.
    shard_bytes : int, optional
        Of shards: bytes of a shard, about. Default: 256 MiB.
    held_out : mapping of str to data, optional
        Rows that sites held out of training (``consilience.hold_out``), by the names of the models: (X, y), or what
        ``evaluate`` takes as data. Candidates and the sites' own models are compared on them, and the one of least loss
        is fused, a site's own being kept unless another is better by a standard error; the verdict rests on them.
        Default: candidates are compared on synthetic inputs, where that is possible.
    **options
        The method's own options; of estimators, hyper-parameters of the fused one.

    Returns
    -------
    Fusion
        A PosteriorFusion, an EstimatorFusion, a DrawsFusion, an AdapterFusion, a NetworkFusion, or a BayesianFusion.

    Raises
    ------
    InputError
        Listing everything that is wrong with the models.
    OptionError
        For options that do not exist or do not fit the models.
    UnsupportedError
        For networks that cannot be traced, and whatever else is not supported.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(200, 2)) + np.repeat([[0.0, 0.0], [8.0, 8.0]], 100, axis=0)
    >>> a, b = (BayesianGaussianMixture(n_components=2, random_state=0).fit(X[start::2]) for start in (0, 1))
    >>> fusion = fuse({"lund": a, "oslo": b}, n_components=2)
    >>> fusion.model.predict([[0.0, 0.0], [8.0, 8.0]]).shape
    (2,)
    >>> [one.name for one in fusion.inputs]
    ['lund', 'oslo']
    """
    with _opened(locals(), rng=rng, progress=progress) as request:
        if held_out is not None:
            refuse_unknown(held_out, [one.name for one in request.inputs])
        kind = _kind(request)
        files = _files_of(request)
        with _naming_extremes(files):
            prepared = _prepare(request, kind)
        if prepared.problems:
            raise InputError(prepared.problems)
        if prepared.error is not None:
            raise prepared.error
        del request  # there may be very many inputs, of which the kind keeps what it needs
        for doubt in prepared.doubts:
            doubt.warn()
        with _naming_extremes(files):
            fusion = prepared.fuse().with_doubts(prepared.doubts)
    if held_out is None:
        return fusion
    return choose_at_sites(kind, fusion, held_out, module, robust=bool(options.get("robust")))


def check(
    models: Mapping[str, Any] | Sequence[Any] | Shards | str | Path,
    method: str | Options | None = None,
    *,
    weights: Mapping[str, float] | ArrayLike | None = None,
    n_observations: Mapping[str, float] | Sequence[float] | str | None = None,
    engine: Engine | str | Any = None,
    **options: Unpack[FuseKeywords],
) -> list[Problem]:
    """Return everything that would go wrong in ``fuse`` with these arguments; empty when nothing would.

    What is in doubt, such as a model given twice or a column in another unit, is a warning here as it is there.

    A `Problem` is a text, ``subject: text; remedy``, that has these parts as attributes.

    Parameters are those of ``fuse``. Posterior files are read one after another and their parameters checked, since
    posteriors are small beside the data they stand for; the arrays of networks stay in their files.

    Raises
    ------
    OptionError
        When the method or an option does not exist.
    """
    with _opened(locals(), only_check=True) as request:
        try:
            prepared = _prepare(request, _kind(request))
        except UnsupportedError as error:
            return list(error.problems)
        except ConsilienceError:
            raise
        except Exception as error:  # what fails in checking would fail in fusing
            return _extremes_in(_files_of(request)) or [fault_of(error).about("the models")]
    for doubt in prepared.doubts:
        doubt.warn()
    problems = [Problem.of(one).coded(InputError.code) for one in prepared.problems]
    return [*problems, *(() if prepared.error is None else prepared.error.problems)]


@contextmanager
def _opened(
    given: Mapping[str, Any], rng: object = 0, progress: bool | Progress = False, only_check: bool = False
) -> Iterator[Request]:
    """Yield a call of ``fuse`` or ``check``, its inputs opened and named, while its progress is shown.

    Shards are not opened here. Raises InputError for anything but a mapping or sequence of models, and OptionError for
    an `rng` that is neither a seed nor a Generator.
    """
    engine = given["engine"]
    models = list_models(given["models"], engine)
    options = {**given["options"], **{name: given[name] for name in KIND_KEYWORDS if name in given}}
    is_sharded = are_shards(models, engine)
    seed, generator = seeded(rng)
    with shown(progress, "fusing", "step") as report:
        yield Request(
            inputs=() if is_sharded else name_inputs(models), method=given["method"],
            options={name: value for name, value in options.items() if value is not None or name not in KIND_KEYWORDS},
            weights=given["weights"], n_observations=given["n_observations"], rng=generator, seed=seed, progress=report,
            engine=engine, only_check=only_check, is_sharded=is_sharded,
            source=list(models.values()) if isinstance(models, Mapping) else models,
        )  # fmt: skip


@contextmanager
def _naming_extremes(files: Sequence[SafetensorsFile]) -> Iterator[None]:
    """Name the files whose numbers are too extreme to calculate with, where calculating fails.

    A file may keep to every rule of its format and still have numbers whose squares or inverses overflow. They are
    looked for only then: reading the arrays of all networks once more costs as much as fusing them.
    """
    try:
        yield
    except ConsilienceError:
        raise
    except Exception:
        if problems := _extremes_in(files):
            raise InputError(problems) from None
        raise


def _extremes_in(files: Sequence[SafetensorsFile]) -> list[Problem]:
    """Return which files have numbers that are too extreme, a line each."""
    return [problem for file in files if (problem := extreme_number(file)) is not None]


def _files_of(request: Request) -> list[SafetensorsFile]:
    """Return the files among the inputs of a call."""
    return [one.file for one in request.inputs if one.file is not None]


def _kind(request: Request) -> Kind:
    """Return of which kind the models are."""
    return SHARDS if request.is_sharded else kind_of(request.inputs, request.method, request.options)


def _prepare(request: Request, kind: Kind) -> Prepared:
    """Return the models read, checked and described by their kind."""
    if request.engine is not None and kind is not SHARDS:
        text = f"runs shards of posterior files; expected None for models in memory, found {request.engine!r}"
        raise OptionError("engine", text)
    _refuse_misplaced(kind, request)
    return kind.prepare(request)


def _refuse_misplaced(kind: Kind, request: Request) -> None:
    """Raise OptionError for keywords that are for another kind of models, where the kind of all models is known."""
    for names, owner in ((NETWORK_KEYWORDS, NETWORKS), (SHARD_KEYWORDS, SHARDS)):
        misplaced = [name for name in names if name in request.options and name not in kind.keywords]
        if misplaced and are_recognised(request):
            text = f"for {owner.title} only, and these models are {kind.title}"
            raise OptionError(", ".join(misplaced), text, "leave it out", "E-VALUE")

"""Feature maps of heads: frozen functions of the inputs, named by a digest that all sites must have.

Sums of features of different functions mean nothing together, so that a map is compared by its digest before sums are
added. Of a torch module it is the SHA-256 of its printed structure and its arrays, of a transformer that of its class
and its fitted attributes, of random features that of their recipe and their random numbers. What a function's code does
beyond that (a ``forward`` that was rewritten) no digest sees.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from consilience.checks import Array, Json
from consilience.errors import InputError, OptionError, UnsupportedError

BATCH_ROWS = 256
"""Inputs that pass through a map at once, for bounded memory. Chosen by hand."""

COLUMNS = "columns"
"""Kind of the map of inputs that are features already."""

_MAX_DEPTH = 6
"""Levels of nested objects that a digest walks down. scikit-learn's Pipelines of column transformers have four."""


class FeatureMap(ABC):
    """A frozen function from inputs (n, ...) to features (n, d), known by its digest."""

    kind: ClassVar[str]
    """What kind of map it is, in files."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 in hexadecimal of what the map is."""

    @property
    @abstractmethod
    def recipe(self) -> Mapping[str, Json] | None:
        """What makes the map again, as JSON values; None where only the object itself is the map."""

    @abstractmethod
    def transform(self, inputs: Any) -> Array:
        """Return the features (n, d) of inputs (n, ...).

        Raises
        ------
        InputError
            For inputs that the map does not take.
        """

    def __call__(self, inputs: Any) -> Array:
        """Return the features (n, d) of inputs (n, ...); see `transform`."""
        return self.transform(inputs)

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.kind

    @property
    def record(self) -> str:
        """What files say of the map: JSON of its kind, name, digest and recipe."""
        recipe = None if self.recipe is None else dict(self.recipe)
        return json.dumps(
            {"kind": self.kind, "name": self.name, "digest": self.digest, "recipe": recipe}, sort_keys=True
        )


class Columns(FeatureMap):
    """The map of inputs that are features already: rows of numbers as they are."""

    kind: ClassVar[str] = COLUMNS

    @property
    def digest(self) -> str:
        """SHA-256 of the kind: all such maps are the same."""
        return hashlib.sha256(COLUMNS.encode()).hexdigest()

    @property
    def recipe(self) -> Mapping[str, Json]:
        """No parameters."""
        return {}

    def transform(self, inputs: Any) -> Array:
        """Return rows of numbers as they are."""
        return as_rows(inputs, "X")


class ObjectFeatures(FeatureMap):
    """The outputs of an object that no file holds, whose content is measured when the map is made."""

    _digest: str

    @abstractmethod
    def _measure(self) -> str:
        """Return the digest of the object as it is now."""

    @property
    def digest(self) -> str:
        """SHA-256 of the object's content when the map was made."""
        return self._digest

    @property
    def recipe(self) -> None:
        """None: such an object is not made from a file."""
        return None


class ModuleFeatures(ObjectFeatures):
    """The outputs of a frozen torch module, flattened to a row for each input.

    The module is the network without its head, in evaluation mode; one in training mode is refused.
    """

    kind: ClassVar[str] = "module"

    def __init__(self, module: Any) -> None:
        self.module = module
        self._refuse_training()
        self._digest = self._measure()

    def _refuse_training(self) -> None:
        training = [path or "itself" for path, part in self.module.named_modules() if part.training]
        if training:
            text = f"is in training mode ({', '.join(training[:3])}), so that its features depend on the batch"
            raise InputError(f"features: {self.name}", text, "call `module.eval()` before fit")

    def _measure(self) -> str:
        digest = hashlib.sha256(f"{self.name}\n{self.module!r}".encode())
        for name, values in self.module.state_dict().items():
            array = values.detach().cpu().contiguous()
            digest.update(f"{name} {tuple(array.shape)} {array.dtype}".encode())
            digest.update(array.flatten().view(_bytes_type()).numpy().tobytes())
        return digest.hexdigest()

    @property
    def name(self) -> str:
        """The class of the module."""
        return type(self.module).__name__

    def transform(self, inputs: Any) -> Array:
        """Return the module's outputs (n, d), flattened; refuses a module that has changed."""
        import torch

        self._refuse_training()
        if self._measure() != self._digest:
            text = "has other weights than when the head was made"
            raise InputError(f"features: {self.name}", text, "freeze it, and fit again", "E-MISMATCH")
        tensor = inputs if isinstance(inputs, torch.Tensor) else torch.as_tensor(np.asarray(inputs))
        parameter = next(self.module.parameters(), None)
        if tensor.is_floating_point() and parameter is not None and parameter.is_floating_point():
            tensor = tensor.to(parameter.dtype)
        pieces = []
        with torch.no_grad():
            for start in range(0, len(tensor), BATCH_ROWS):
                batch = tensor[start : start + BATCH_ROWS]
                try:
                    outputs = self.module(batch if parameter is None else batch.to(parameter.device))
                except Exception as error:  # whatever the code of the user's module raises
                    text = f"does not take inputs {tuple(batch.shape)} ({str(error).partition(chr(10))[0][:200]})"
                    raise InputError(f"features: {self.name}", text) from error
                pieces.append(outputs.detach().reshape(len(batch), -1).cpu().to(torch.float64).numpy())
        return as_rows(np.concatenate(pieces) if pieces else np.zeros((0, 0)), f"features: {self.name}")


class TransformerFeatures(ObjectFeatures):
    """The outputs of an object with ``transform``, such as a fitted Pipeline, or of a callable with a stated digest.

    The digest is a name of the map's content that all sites have alike; of an object by default the SHA-256 of its
    class and fitted attributes. A callable must have one.
    """

    kind: ClassVar[str] = "transformer"

    def __init__(self, transformer: Any, digest: str | None = None) -> None:
        self.transformer = transformer
        apply = getattr(transformer, "transform", transformer)
        if not callable(apply):
            text = f"is a {type(transformer).__name__}, expected a module, a transformer or a function"
            raise InputError("features", text, code="E-TYPE")
        self._apply: Callable[[Any], Any] = apply
        self._stated = digest
        self._digest = self._measure()

    def _measure(self) -> str:
        if self._stated is not None:
            return hashlib.sha256(f"stated {self._stated}".encode()).hexdigest()
        if isinstance(self.transformer, type) or not hasattr(self.transformer, "__dict__") or self._is_function():
            text = f"is a {type(self.transformer).__name__}, whose content has no digest that sites could compare"
            remedy = 'name what it is: `cs.features.frozen(function, digest="resnet18, ImageNet, release 1")`'
            raise InputError("features", text, remedy, "E-TYPE")
        digest = hashlib.sha256()
        _walk(digest, self.transformer, 0)
        return digest.hexdigest()

    def _is_function(self) -> bool:
        return hasattr(self.transformer, "__code__") or type(self.transformer).__name__ == "builtin_function_or_method"

    @property
    def name(self) -> str:
        """The class of the transformer, or the name of the function."""
        return getattr(self.transformer, "__name__", type(self.transformer).__name__)

    def transform(self, inputs: Any) -> Array:
        """Return what the transformer makes of inputs (n, d); refuses one that was fitted anew."""
        if self._stated is None and self._measure() != self._digest:
            text = "was fitted anew since the head was made"
            raise InputError(f"features: {self.name}", text, "freeze it, and fit the head again", "E-MISMATCH")
        try:
            outputs = self._apply(inputs)
        except Exception as error:  # whatever the code of the user's transformer raises
            text = f"does not take these inputs ({str(error).partition(chr(10))[0][:200]})"
            raise InputError(f"features: {self.name}", text) from error
        return as_rows(outputs.toarray() if hasattr(outputs, "toarray") else outputs, f"features: {self.name}")


def frozen(features: Any, digest: str | None = None) -> FeatureMap:
    """Return a feature map of whatever computes features.

    Parameters
    ----------
    features : FeatureMap, torch module, object with transform, callable or None
        What computes them; None for inputs that are features already.
    digest : str, optional
        Of a callable: a name of its content that all sites have alike.

    Raises
    ------
    InputError
        For a module in training mode, a callable without a digest, and what computes nothing.

    Examples
    --------
    >>> halves = frozen(lambda X: X / 2, digest="halves")
    >>> halves(np.array([[2.0, 4.0]]))
    array([[1., 2.]])
    """
    if isinstance(features, FeatureMap):
        made = features
    elif features is None:
        made = Columns()
    elif hasattr(features, "named_modules") and hasattr(features, "state_dict"):
        made = ModuleFeatures(features)
    else:
        made = TransformerFeatures(features, digest)
    return remember(made)


_SEEN: WeakValueDictionary[str, FeatureMap] = WeakValueDictionary()
"""Maps of this process by their digests: what was fused from sites' heads in memory can predict at once."""


def remember(features: FeatureMap) -> FeatureMap:
    """Return a map, which `map_of_record` finds as long as somebody holds it."""
    _SEEN[features.digest] = features
    return features


def map_of_record(record: str, makers: Mapping[str, Callable[..., FeatureMap]]) -> FeatureMap | None:
    """Return the map that a file names: one of this process, or made from its recipe; None where neither can be.

    It raises for a record that is none, and a recipe that makes another map here, as under another release of NumPy.
    """
    stated = parsed_record(record)
    seen = _SEEN.get(stated["digest"])
    if seen is not None or stated["recipe"] is None:
        return seen
    if stated["kind"] not in makers:
        raise InputError("features", f"are of kind {stated['kind']!r:.40}, which this version does not make")
    try:
        made = makers[stated["kind"]](**stated["recipe"])
    except (TypeError, OptionError) as error:
        raise InputError("features", f"have a recipe that makes nothing ({str(error)[:200]})") from error
    if made.digest != stated["digest"]:
        text = f"come out as {made.digest[:12]} here, expected {stated['digest'][:12]}"
        raise InputError(f"features: {stated['kind']}", text, "use the release of NumPy that made them", "E-MISMATCH")
    return remember(made)


def parsed_record(record: Any) -> dict[str, Any]:
    """Return what the JSON of a map says."""
    try:
        stated = json.loads(record)
        is_record = isinstance(stated, dict) and all(isinstance(stated.get(name), str) for name in ("kind", "digest"))
    except (TypeError, ValueError):
        is_record = False
    if not is_record or not isinstance(stated.get("recipe"), dict | None):
        raise InputError("features", f"expected the record of a feature map, found {str(record)[:80]!r}")
    return {"name": stated["kind"], "recipe": None, **stated}


def as_rows(values: Any, name: str) -> Array:
    """Return features as rows (n, d), single precision kept."""
    try:
        array = np.asarray(values)
        array = array if array.dtype == np.float32 else array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(name, "expected rows of numbers", code="E-TYPE") from None
    if array.ndim != 2:
        text = f"expected a row of features for each input, found shape {array.shape}"
        raise InputError(name, text, "give rows (n, columns), or `features=` that make such of each input", "E-SHAPE")
    is_odd = ~np.isfinite(array)
    if np.any(is_odd):
        row, column = np.argwhere(is_odd)[0]
        text = (
            f"has features that are NaN or infinite ({is_odd.any(axis=1).sum():,} of {len(array):,} rows; the first is"
            f" row {row}, feature {column}, counted from 0)"
        )
        raise InputError(name, text, "leave these rows out, or impute them alike at all sites", "E-NUMBER")
    return array


def _bytes_type() -> Any:
    import torch

    return torch.uint8


def _walk(digest: Any, value: Any, depth: int) -> None:
    """Feed a digest with an object's class and attributes, in the order of their names."""
    if depth > _MAX_DEPTH:
        text = "are nested too deeply for a digest"
        raise UnsupportedError("features", text, "give `cs.features.frozen(..., digest=)`")
    if value is None or isinstance(value, str | int | float | bool | np.generic):
        digest.update(f"{type(value).__name__} {value!r};".encode())
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        digest.update(f"array {value.shape} {value.dtype.str};".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"key {key!r};".encode())
            _walk(digest, value[key], depth + 1)
    elif isinstance(value, list | tuple | np.ndarray):
        digest.update(f"sequence {len(value)};".encode())
        for one in value:
            _walk(digest, one, depth + 1)
    elif isinstance(value, slice):
        digest.update(f"{value!r};".encode())
    elif hasattr(value, "tocsr"):
        rows = value.tocsr()
        for part in (rows.data, rows.indices, rows.indptr, np.array(rows.shape)):
            _walk(digest, part, depth + 1)
    elif hasattr(value, "__dict__") and not callable(value):
        digest.update(f"object {type(value).__module__}.{type(value).__qualname__};".encode())
        _walk(digest, vars(value), depth + 1)
    else:
        text = f"have an attribute of type {type(value).__name__}, which has no digest"
        raise UnsupportedError("features", text, 'name what they are: `cs.features.frozen(transformer, digest="...")`')

"""A format of files: a JSON document in the header of a safetensors file, and tensors beside it; written and read.

Many files are read in stages, the documents of all before the tensors of any, so that a folder with a bad file is told
of it before anything large is read. What is wrong with a file in one stage is its result, and the next ones pass it by.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version as installed_version
from math import prod
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from consilience.checks import AnyArray
from consilience.drawing.words import first_names
from consilience.errors import FileFormatError, InputError, UnsupportedError
from consilience.files.arrays import DTYPES, write_arrays
from consilience.files.budget import pad_text
from consilience.files.document import OUR_FORMATS, REMEDY, check_version, misplaced, parse_document, validate_document
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader, as_file

Schema = TypeVar("Schema", bound=BaseModel)
Content = TypeVar("Content")
Record = dict[str, Any] | None
"""The provenance of a fused file; None of all others."""


class TensorSpec(NamedTuple):
    """What a tensor of a file must be."""

    shape: tuple[int | None, ...] | None = None  # None where an axis has any length, or for any shape
    dtypes: tuple[str, ...] = ()  # the types that it may have, by NumPy's names; empty for any
    is_needed: bool = True  # whether a file without it is refused
    may_be_empty: bool = False  # whether it may have no entries
    is_empty_where: str = ""  # what it means that it has none, in messages

    def problem(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        """Return why a tensor of this shape and type is not what it must be; "" where it is."""
        if self.dtypes and dtype not in self.dtypes:
            code = {name: code for code, name in DTYPES.items()}
            found, expected = code.get(dtype, dtype), " or ".join(code[one] for one in self.dtypes)
            return f"tensor {name!r} has type {found}, expected {expected}"
        if self.shape is not None and not (
            len(shape) == len(self.shape) and all(b in (a, None) for a, b in zip(shape, self.shape, strict=True))
        ):
            expected = ", ".join("any" if size is None else str(size) for size in self.shape)
            return f"tensor {name!r} has shape {list(shape)}, expected [{expected}]"
        if prod(shape) == 0 and not self.may_be_empty:
            return f"tensor {name!r} is empty{self.is_empty_where and f': {self.is_empty_where}'}"
        return ""


_MAX_LISTED = 5
"""Names that a message lists at most; more are counted. Chosen by hand."""


def require_tensors(
    file: SafetensorsFile, expected: Mapping[str, TensorSpec], tensors: TensorHeader, remedy: str = REMEDY
) -> None:
    """Raise FileFormatError for tensors that are missing, unknown, or of another type or shape than they must be."""
    if missing := [name for name, spec in expected.items() if spec.is_needed and name not in tensors.shapes]:
        raise FileFormatError(file, f"lacks the tensors {first_names(sorted(missing), _MAX_LISTED)}", remedy)
    if unknown := sorted(set(tensors.shapes) - set(expected)):
        listed = first_names(unknown, _MAX_LISTED)
        raise FileFormatError(file, f"has tensors that its header does not announce: {listed}", remedy)
    for name, shape in sorted(tensors.shapes.items()):
        if problem := expected[name].problem(name, shape, tensors.dtypes[name]):
            raise FileFormatError(file, problem, remedy)


@dataclass(frozen=True)
class Format(Generic[Schema, Content]):
    """A format of files: how they are written and read."""

    tag: str  # what their documents state as their format
    version: int  # the version that is written, and the newest that is read
    schema: type[Schema]  # what their documents must be
    what: str  # what such a file is called in messages, such as "a posterior file"
    # Of a file, its document, or what `prepare` returned, and the tensors by name: the content and its provenance, or
    # None. Raises for values that are none.
    make: Callable[[SafetensorsFile, Any, dict[str, Any]], tuple[Content, Record]]
    # Of a document: the tensors beside it, and what each must be. Default: `prepare` looks at them.
    tensors: Callable[[Schema], Mapping[str, TensorSpec]] | None = None
    # Of a file, its document and its tensors' types and shapes: what `make` takes of them. Raises for what does not go
    # together.
    prepare: Callable[[Any, Schema, TensorHeader], Any] | None = None
    # Entries of lists and objects in a document, by key, above which it is refused before it is validated
    max_entries: Mapping[str, int] = field(default_factory=dict)
    remedy: str = REMEDY  # what to do about a file that is none. Default: to save the model again.
    in_order: str | None = None  # a field of the document whose keys keep their order
    # Whether what would be refused when it is read is refused when it is written. Default: False, for formats whose
    # content is checked before.
    is_checked_when_written: bool = False

    def write(self, path: Path, fields: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        """Write a file, whole or not at all.

        `fields` are what its document says beside format and versions; tensors are storable as they are. Raises
        InputError when the path cannot be written, or fields are no JSON values.
        """
        text = document_text(path, self.tag, self.version, fields, arrays, self.in_order)
        if self.is_checked_when_written and self.prepare is not None:
            where = f"{path}: cannot be written"
            try:
                header = validate_document(where, self.schema, parse_document(path, text), remedy=self.remedy)
                self.prepare(where, header, TensorHeader.of(arrays))
            except FileFormatError as error:  # what no reader would take is the caller's mistake, not a file's
                raise InputError(error.problems) from error
        write_arrays(path, arrays, text)

    def read_header(self, where: str | Path | SafetensorsFile) -> tuple[Schema, TensorHeader]:
        """Return the document of a file and its tensors' types and shapes, both checked.

        Raises FileFormatError for a file that is none of these, or whose tensors are not those of its document.
        """
        header, tensors, _ = self._checked(as_file(where))
        return header, tensors

    def read_prepared(self, where: str | Path | SafetensorsFile) -> Any:
        """Return what `prepare` makes of the document of a file and its tensors' types and shapes; as `read_header`."""
        return self._checked(as_file(where))[2]

    def load(self, where: str | Path | SafetensorsFile) -> Content:
        """Return the content of a file alone; raises as `read`."""
        return self.read(where)[0]

    def read(self, where: str | Path | SafetensorsFile) -> tuple[Content, Record]:
        """Return the content of a file, everything checked, and its provenance where it was fused.

        FileFormatError as `read_header`; InputError for values that the format cannot have.
        """
        (content,) = self.read_many([as_file(where)])
        if isinstance(content, InputError):
            raise content
        return content

    def read_many(self, files: Sequence[SafetensorsFile]) -> list[tuple[Content, Record] | InputError]:
        """Return what `read` returns or raises for every file: all documents first, then all tensors."""
        results = [self._prepared(file) for file in files]
        results = [
            result if isinstance(result, InputError) else self._with_arrays(file, result)
            for file, result in zip(files, results, strict=True)
        ]
        return [
            result if isinstance(result, InputError) else self._made(file, *result)
            for file, result in zip(files, results, strict=True)
        ]

    def _checked(self, file: SafetensorsFile) -> tuple[Schema, TensorHeader, Any]:
        """Return the document of a file, its tensors' types and shapes, and what `make` takes of them."""
        header, tensors = read_document(
            file, self.tag, self.schema, self.version, self.what, self.max_entries, self.remedy
        )
        if self.tensors is not None:
            require_tensors(file, self.tensors(header), tensors, self.remedy)
        return header, tensors, header if self.prepare is None else self.prepare(file, header, tensors)

    def _prepared(self, file: SafetensorsFile) -> Any:
        try:
            return self._checked(file)[2]
        except InputError as error:
            return error

    def _with_arrays(self, file: SafetensorsFile, prepared: Any) -> Any:
        """Return what was prepared with the tensors of the file, in the order of their names."""
        try:
            return prepared, file.arrays(sorted(file.header().shapes), self.remedy)
        except FileFormatError as error:
            return error

    def _made(
        self, file: SafetensorsFile, prepared: Any, arrays: dict[str, Any]
    ) -> tuple[Content, Record] | InputError:
        try:
            return self.make(file, prepared, arrays)
        except InputError as error:
            return error
        except (MemoryError, UnsupportedError):
            raise
        except Exception as error:  # numbers within the rules of a format may still be such that nothing can be made
            text = f"has numbers of which {self.what} cannot be made ({type(error).__name__}: {error!s:.120})"
            return FileFormatError(file.label, text, self.remedy)


def document_text(
    where: object,
    tag: str,
    version: int,
    fields: Mapping[str, Any],
    arrays: Mapping[str, AnyArray],
    in_order: str | None = None,
) -> str:
    """Return the JSON document of a file: its format and versions, and what it says itself; keys are sorted.

    Beside a few `arrays`, a document that lists very much is padded, so that it is read again; `in_order` is a field
    whose keys keep their order. Raises InputError for fields that are no JSON values, and more of them than are ever
    read again.
    """
    head = {"format": tag, "format_version": version, "library_version": _library_version()}
    try:
        text = json.dumps({**head, **fields}, sort_keys=True, allow_nan=False)
        if in_order is not None:
            text = json.dumps({**json.loads(text), in_order: fields[in_order]}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise not_json(where, error) from error
    try:
        return pad_text(text, sum(values.nbytes for values in arrays.values()))
    except InputError as error:
        raise InputError(where, f"cannot be written: {error}", code="E-OUTPUT") from error


def not_json(where: object, error: Exception) -> InputError:
    """Return the error of a document that cannot be written."""
    return InputError(where, f"cannot be written: its header would not be JSON ({error})", code="E-OUTPUT")


@cache
def _library_version() -> str:
    return installed_version("consilience")


def read_document(
    file: SafetensorsFile,
    tag: str,
    schema: type[Schema],
    newest: int,
    what: str,
    max_entries: Mapping[str, int] | None = None,
    remedy: str = REMEDY,
) -> tuple[Schema, TensorHeader]:
    """Return the document of a file, validated, and its tensors' types and shapes; as in `Format`.

    Raises FileFormatError for a file that is none of these.
    """
    header, document = file.header(remedy), file.parsed_document(remedy)
    if header.text is None:
        raise FileFormatError(file, f"has no consilience metadata, so it is not {what}", remedy)
    stated = document.get("format") if isinstance(document, dict) else None
    if isinstance(stated, str) and stated != tag:
        text = misplaced(stated, what)[0] if stated in OUR_FORMATS else f"is of format {stated!r:.80}, expected {what}"
        raise FileFormatError(file, text, remedy)
    check_version(file.label, document, newest)
    for key, most in (max_entries or {}).items():
        entries = document.get(key) if isinstance(document, dict) else None
        if isinstance(entries, dict | list) and len(entries) > most:
            raise FileFormatError(file, f"has {len(entries)} {key} arrays, expected at most {most}", remedy)
    return validate_document(file.label, schema, document, remedy=remedy), header

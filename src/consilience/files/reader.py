"""The reader of files of one format: a JSON document in the header of a safetensors file, and tensors beside it.

Many files are read in stages, the documents of all before the tensors of any, so that a folder with a bad file is told
of it before anything large is read. What is wrong with a file in one stage is its result, and the next ones pass it by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from consilience.errors import FileFormatError, InputError
from consilience.files.document import REMEDY, check_version, validate_document
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader, as_file

Schema = TypeVar("Schema", bound=BaseModel)
Content = TypeVar("Content")
Record = dict[str, Any] | None
"""The provenance of a fused file; None of all others."""


@dataclass(frozen=True)
class FileReader(Generic[Schema, Content]):
    """How files of one format are read.

    Parameters
    ----------
    schema : type
        What their documents must be.
    version : int
        The newest version of the format that is read.
    what : str
        What such a file is called in messages, such as "a posterior file".
    prepare : callable
        Of a file, its document and its tensors' types and shapes: what `make` takes of them. Raises for tensors that
        are missing, unknown, or of another type or shape.
    make : callable
        Of a file, what `prepare` returned and the tensors by name: the content and its provenance, or None. Raises for
        values that are none.
    max_entries : mapping of str to int
        Entries of lists and objects in a document, by key, above which it is refused before it is validated.
    """

    schema: type[Schema]
    version: int
    what: str
    prepare: Callable[[SafetensorsFile, Schema, TensorHeader], Any]
    make: Callable[[SafetensorsFile, Any, dict[str, Any]], tuple[Content, Record]]
    max_entries: Mapping[str, int] = field(default_factory=dict)

    def read_header(self, where: str | Path | SafetensorsFile) -> tuple[Schema, TensorHeader]:
        """Return the document of a file and its tensors' types and shapes, both checked.

        Raises
        ------
        FileFormatError
            For a file that is none of these, or whose tensors are not those of its document.
        """
        file = as_file(where)
        header, tensors = read_document(file, self.schema, self.version, self.what, self.max_entries)
        self.prepare(file, header, tensors)
        return header, tensors

    def load(self, where: str | Path | SafetensorsFile) -> Content:
        """Return the content of a file alone; raises as `read`."""
        return self.read(where)[0]

    def read(self, where: str | Path | SafetensorsFile) -> tuple[Content, Record]:
        """Return the content of a file, everything checked, and its provenance where it was fused.

        Raises
        ------
        FileFormatError
            As `read_header`.
        InputError
            For values that the format cannot have.
        """
        (content,) = self.read_many([as_file(where)])
        if isinstance(content, InputError):
            raise content
        return content

    def read_many(self, files: Sequence[SafetensorsFile]) -> list[tuple[Content, Record] | InputError]:
        """Return what `read` returns or raises for every file: all documents first, then all tensors."""
        results = [self._prepared(file) for file in files]
        results = [
            result if isinstance(result, InputError) else _arrays_beside(file, result)
            for file, result in zip(files, results, strict=True)
        ]
        return [
            result if isinstance(result, InputError) else self._made(file, *result)
            for file, result in zip(files, results, strict=True)
        ]

    def _prepared(self, file: SafetensorsFile) -> Any:
        try:
            return self.prepare(file, *read_document(file, self.schema, self.version, self.what, self.max_entries))
        except InputError as error:
            return error

    def _made(
        self, file: SafetensorsFile, prepared: Any, arrays: dict[str, Any]
    ) -> tuple[Content, Record] | InputError:
        try:
            return self.make(file, prepared, arrays)
        except InputError as error:
            return error


def _arrays_beside(file: SafetensorsFile, prepared: Any) -> Any:
    """Return what was prepared with the tensors of the file, in the order of their names."""
    try:
        return prepared, file.arrays(sorted(file.header().shapes))
    except FileFormatError as error:
        return error


def read_document(
    file: SafetensorsFile,
    schema: type[Schema],
    newest: int,
    what: str,
    max_entries: Mapping[str, int] | None = None,
) -> tuple[Schema, TensorHeader]:
    """Return the document of a file, validated, and its tensors' types and shapes; as in `FileReader`.

    Raises
    ------
    FileFormatError
        For a file that is none of these.
    """
    header, document = file.header(), file.document
    if header.text is None:
        raise FileFormatError(file, f"has no consilience metadata, so it is not {what}", REMEDY)
    check_version(file.label, document, newest)
    for key, most in (max_entries or {}).items():
        entries = document.get(key) if isinstance(document, dict) else None
        if isinstance(entries, dict | list) and len(entries) > most:
            raise FileFormatError(file, f"has {len(entries)} {key} arrays, expected at most {most}", REMEDY)
    return validate_document(file.label, schema, document), header

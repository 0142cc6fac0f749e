"""Folders of adapters, written: factors by the stream that writes checkpoints, configuration, record and card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from consilience.checkpoints.card import model_card
from consilience.checkpoints.folder import ADAPTER_CONFIG
from consilience.checkpoints.inputs import MergeInputs
from consilience.checkpoints.output import PROVENANCE, as_json
from consilience.checkpoints.stream import Stream
from consilience.checkpoints.tensor_reader import InputFiles
from consilience.checks import Json
from consilience.files.atomic import write_bytes


@contextmanager
def streaming(inputs: MergeInputs, seed: int = 0) -> Iterator[tuple[InputFiles, Stream]]:
    """Yield the files of a merge, open, and a stream that writes."""
    with ThreadPoolExecutor(1) as input_hashing, ThreadPoolExecutor(1) as output_hashing:
        input_files, stream = InputFiles(inputs.files, input_hashing), Stream(1, output_hashing, seed)
        try:
            yield input_files, stream
        finally:
            stream.close()
            input_files.close()


def write_records(folder: Path, config: Mapping[str, Json] | None, record: Mapping[str, Json], single: bool) -> None:
    """Write configuration, record and model card next to the factors; of a single file the record alone.

    Files of other conventions than peft's have no configuration.
    """
    if config is not None:
        write_bytes(folder / ADAPTER_CONFIG, f"{as_json(config)}\n".encode())
    write_bytes(folder / PROVENANCE, f"{as_json(record)}\n".encode())
    if not single:
        write_bytes(folder / "README.md", model_card(record).encode())

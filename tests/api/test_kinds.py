"""Laws of every kind of model and every format of files: each is known for what it is, and by nobody else."""

import re
import subprocess
import sys
from dataclasses import fields
from html import unescape
from pkgutil import resolve_name

import pytest

import consilience as cs
from consilience.api.kinds import (
    ESTIMATORS,
    FORMATS,
    KINDS,
    NETWORKS,
    POSTERIORS,
    SHARDS,
    format_of,
    inspect_file,
    kind_of,
    kind_of_file,
)
from consilience.core.inputs import name_inputs
from consilience.errors import FileFormatError
from consilience.estimators.adapters.table import ESTIMATORS as ESTIMATORS_TABLE
from consilience.networks.fuse_aligned import NetworkArguments
from consilience.posteriors.adapters.table import ADAPTERS
from tests.api.kinds_zoo import FILES, FORMAT_NAMES, KIND_NAMES, OBJECTS, OF_SHARDS, packed
from tests.cli.running import command

every_kind = pytest.mark.parametrize("name", KIND_NAMES)
every_format = pytest.mark.parametrize("name", FORMAT_NAMES)


@every_kind
def test_the_first_kind_that_recognises_an_object_is_its_own(name):
    model = OBJECTS[name]()
    assert next(kind.name for kind in KINDS if kind.recognises([model])[0]) == name


@every_kind
def test_two_of_a_kind_are_fused_and_checked_as_that_kind(name):
    models = [OBJECTS[name](seed) for seed in range(2)]
    kind = KINDS[KIND_NAMES.index(name)]
    method = "average" if kind.has_method("average") else None  # sums and draws have no average of components
    assert cs.check(models, method) == []
    fusion = cs.fuse(models, method)
    assert next(kind.name for kind in KINDS if kind.recognises([fusion])[0]) == name
    assert all(kind.has_method(one.name) for one in kind.methods)
    assert not kind.has_method("astrology")
    assert fusion.summary()


@every_kind
def test_command_cell_report_and_the_report_of_a_file_begin_with_one_sentence(name, tmp_path):
    models = {place: OBJECTS[name](seed) for seed, place in enumerate(("lund", "oslo"))}
    kind = KINDS[KIND_NAMES.index(name)]
    fusion = cs.fuse(models, "average" if kind.has_method("average") else None)
    fusion.save(tmp_path / "fused.safetensors")
    fusion.report(tmp_path / "report.html")
    done = command("report", tmp_path / "fused.safetensors", "-o", tmp_path / "of-file.html")
    assert done.code == 0, done.err
    sentence = fusion.in_short
    assert "2 models" in sentence
    assert fusion.summary().splitlines()[0] == sentence
    for page in (fusion._repr_html_(), *((tmp_path / one).read_text() for one in ("report.html", "of-file.html"))):
        assert unescape(re.findall(r'<p class="short">(.*?)</p>', page)[0]) == sentence


def test_of_inputs_of_several_kinds_the_networks_reader_says_what_is_odd():
    mixed = name_inputs([OBJECTS[name]() for name in KIND_NAMES])
    assert kind_of(mixed).name == "bayesian"
    plain = name_inputs([OBJECTS[name]() for name in KIND_NAMES if name != "bayesian"])
    assert kind_of(plain).name == "networks"


def test_no_two_formats_are_called_or_tagged_the_same():
    every = [*FORMATS, *SHARDS.formats]
    assert len({form.name for form in every}) == len({form.tag for form in every}) == len(every)


@every_format
def test_a_file_says_its_format(name, tmp_path):
    path = FILES[name](tmp_path / "file.safetensors")
    assert format_of(path).name == name
    assert name in [form.name for form in kind_of_file(path).formats]


@every_format
def test_what_is_read_is_written_the_same(name, tmp_path):
    path = FILES[name](tmp_path / "file.safetensors")
    if format_of(path).tag is None:
        with pytest.raises(FileFormatError, match="has no consilience metadata with a symmetry"):
            cs.load(path)
        return
    found = cs.load(path)
    assert kind_of_file(path).writes(found)
    cs.save(found, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@every_format
def test_its_header_alone_says_what_is_inside(name, tmp_path):
    path = FILES[name](tmp_path / "file.safetensors")
    found = inspect_file(path)
    assert found.rows
    assert found.document
    is_it, behind, partners, following = found.plain
    assert is_it.startswith("This is ")
    assert "observation" in behind
    assert "fused with" in partners
    assert following.startswith("Next: ")
    assert all(sentence.endswith(".") for sentence in found.plain)


@pytest.mark.parametrize("name", OF_SHARDS)
def test_a_shard_is_told_from_what_is_loaded(name, tmp_path):
    path = packed(tmp_path)
    with pytest.raises(FileFormatError, match=f"is a {name} of many posteriors"):
        cs.load(path)
    assert inspect_file(path).rows
    assert SHARDS.recognises([cs.shards(path.parent)]) == [True]


@pytest.mark.parametrize(
    "form", [form for kind in (*KINDS, SHARDS) for form in kind.formats], ids=lambda form: form.name
)
def test_the_functions_of_a_format_are_where_it_says(form):
    assert callable(resolve_name(form.loader))
    assert callable(resolve_name(form.inspector))


def test_a_kind_may_know_the_models_of_all_its_adapters():
    libraries = {adapter.library for adapter in ADAPTERS} - {"consilience"}
    assert libraries <= POSTERIORS.packages, "say in posteriors/kind.py which package defines the models of an adapter"
    libraries = {adapter.kind.partition(".")[0] for adapter in ESTIMATORS_TABLE} - {"consilience"}
    assert libraries <= ESTIMATORS.packages, "say in estimators/kind.py which package defines the models of an adapter"


def test_a_folder_of_descriptions_alone_has_no_model(tmp_path):
    for name in ("lund", "oslo"):
        FILES["description"](tmp_path / f"{name}.description.safetensors")
    with pytest.raises(cs.errors.InputError, match="fusing takes at least two models, found 0"):
        cs.fuse(str(tmp_path))


def test_arguments_for_networks_are_those_of_their_fusion():
    assert NETWORKS.statements == tuple(argument.name for argument in fields(NetworkArguments))


def test_fusing_imports_no_room_of_another_kind():
    script = (
        "import sys, numpy as np, consilience as cs; family = cs.families.DiagonalGaussian(2);"
        "natural = family.to_natural(mean=np.eye(2), variance=np.ones((2, 2)));"
        "cs.fuse([cs.Posterior(family, natural * scale, counts=[9.0, 9.0]) for scale in (1.0, 2.0)]);"
        "rooms = tuple(f'consilience.{room}.' for room in ('networks', 'estimators', 'checkpoints'));"
        "tables = ('.kind', '.gaussian');"
        "others = [name for name in sys.modules if name.startswith(rooms) and not name.endswith(tables)];"
        "print(others, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]

"""Files of Bayesian networks: what was written is read, and nothing forged gets through."""

import json
import math
import resource
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as to_safetensors
from torch import nn

import consilience as cs
from consilience.api.kinds import format_of
from consilience.networks.files import read_network, read_network_summary, read_symmetry
from consilience.networks.fisher.files import read_fisher
from consilience.networks.gaussian.file_format import read_bayesian, read_bayesian_summary, write_bayesian
from consilience.networks.gaussian.files import symmetry_of_parameters, write_bayesian_network
from consilience.networks.gaussian.gaussian_arrays import gaussian_symmetry
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.network import Network
from consilience.networks.symmetry.symmetry import symmetry_to_json
from tests.cli.bad_files import BAD, GOOD, NOT_SAFETENSORS, raw

PROVENANCE = {"method": "kl", "options": {"b": 1, "a": None}, "inputs": [{"name": "x", "weight": 0.5}], "seed": 0}
CLASSES = ("no", "yes", "\N{GREEK SMALL LETTER ALPHA}")


class Tied(nn.Module):
    """Reads words with the weights that it answers with."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.out = nn.Linear(5, 11)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x).tanh())


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def normalised():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def bayesian(module=None, dtype=torch.float32, **fields):
    """Return a Bayesian network around a module with made-up variances."""
    torch.manual_seed(0)
    module = perceptron() if module is None else module
    means = {name: values.detach().to(dtype) for name, values in module.named_parameters()}
    variances = {name: (torch.rand(values.shape) + 0.1).to(dtype) for name, values in means.items()}
    return BayesianNetwork(module, means, variances, **fields)


def traced(module=None, example=None):
    return cs.symmetry(perceptron() if module is None else module, torch.zeros(2, 4) if example is None else example)


def as_bytes(values):
    tensor = torch.as_tensor(values).detach().contiguous().reshape(-1)
    return str(tensor.dtype), tuple(values.shape), tensor.view(torch.uint8).tolist()


def alike(found, expected):
    assert list(found.means) == list(found.variances) == list(expected.means)
    for name in expected.means:
        assert as_bytes(found.means[name]) == as_bytes(expected.means[name])
        assert as_bytes(found.variances[name]) == as_bytes(expected.variances[name])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bnn.safetensors"


# -- What was written is read.


@pytest.mark.parametrize("prior", [None, 0.5, {"0.weight": 1.0, "0.bias": 2.0, "2.weight": 3, "2.bias": 1e-30}])
@pytest.mark.parametrize("classes", [None, CLASSES])
def test_a_bayesian_network_comes_back(path, prior, classes):
    bnn = bayesian(prior_variances=prior, classes=classes, symmetry=traced())
    cs.save(bnn, path)
    found = cs.load(path)
    assert isinstance(found, BayesianNetwork)
    alike(found, bnn)
    assert (found.prior, found.classes, found.symmetry) == (bnn.prior, classes, bnn.symmetry)
    assert found.symmetry.proved
    assert found.prior is None or list(found.prior) == list(bnn.means)
    assert (found.module, found.name, len(found.sha256)) == (None, str(path), 64)
    assert format_of(path).name == "bayesian"


def test_predictions_are_those_of_the_network_that_was_saved(path):
    bnn, x = bayesian(normalised()), torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    cs.save(bnn, path)
    expected = bnn.predict(x, samples=8, rng=3)
    assert np.array_equal(cs.load(path).with_module(bnn.module).predict(x, samples=8, rng=3), expected)
    assert np.array_equal(read_bayesian(path).with_module(bnn.module).predict(x, samples=8, rng=3), expected)
    with pytest.raises(cs.errors.UnsupportedError, match="with_module"):
        cs.load(path).predict(x)
    with pytest.raises(cs.errors.InputError, match=r"bnn.safetensors: .* parameters of the module without a mean"):
        read_bayesian(path).with_module(nn.Sequential(*perceptron(), nn.Linear(3, 3)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_type_comes_back(path, dtype):
    bnn = bayesian(dtype=dtype)
    bnn = replace(bnn, variances={name: values.to(torch.float64) for name, values in bnn.variances.items()})
    cs.save(bnn, path)
    found = cs.load(path)
    alike(found, bnn)
    library = torch.Tensor if dtype == torch.bfloat16 else np.ndarray
    assert all(isinstance(values, library) for values in (*found.means.values(), *found.variances.values()))


def test_numbers_and_empty_arrays_are_parameters_too(path):
    means = {"scale": np.array(3.0), "none": np.zeros((0, 2)), "a/b": np.ones((1, 2, 1, 2))}
    bnn = BayesianNetwork(None, means, {name: values + 1 for name, values in means.items()})
    cs.save(bnn, path)
    alike(cs.load(path), bnn)


def test_the_same_network_gives_the_same_bytes_from_any_library(path):
    bnn, contents = bayesian(prior_variances=2.0, classes=CLASSES, symmetry=traced()), set()
    numpy = {what: {n: v.numpy() for n, v in getattr(bnn, what).items()} for what in ("means", "variances")}
    columns = {name: np.asfortranarray(values) for name, values in numpy["means"].items()}
    backwards = {
        "variances": dict(reversed(bnn.variances.items())),
        "prior_variances": dict.fromkeys(reversed(bnn.means), 2),
    }
    for given in (bnn, bnn, replace(bnn, **numpy), replace(bnn, means=columns), replace(bnn, **backwards)):
        for provenance in (PROVENANCE, dict(reversed(PROVENANCE.items()))):
            write_bayesian_network(path, given, provenance=provenance)
            contents.add(path.read_bytes())
    assert len(contents) == 1
    write_bayesian_network(path, cs.load(path), provenance=PROVENANCE)
    assert {path.read_bytes()} == contents


def test_the_header_has_one_key_and_the_tensors_their_names(path):
    bnn = bayesian(prior_variances=2.0)
    write_bayesian_network(path, bnn, traced(), PROVENANCE)
    with safe_open(path, framework="numpy") as file:
        ((key, text),) = file.metadata().items()
    document = json.loads(text)
    assert key == "consilience"
    assert document == {
        "classes": None,
        "format": "consilience-bayesian",
        "format_version": 1,
        "library_version": cs.__version__,
        "parameters": list(bnn.means),
        "prior_variances": dict.fromkeys(bnn.means, 2.0),
        "provenance": PROVENANCE,
        "symmetry": symmetry_to_json(traced()),
    }
    assert set(load_file(path)) == {f"{what}/{name}" for name in bnn.means for what in ("mean", "variance")}


def test_the_header_alone_says_what_is_inside(path):
    bnn = bayesian(dtype=torch.float16, classes=CLASSES, prior_variances=2.0)
    bnn = replace(bnn, variances={name: values.to(torch.bfloat16) for name, values in bnn.variances.items()})
    write_bayesian_network(path, bnn, traced(), PROVENANCE)
    content = path.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:length] + b"\xff" * (len(content) - length))  # every number is NaN
    found = read_bayesian_summary(path)
    assert found.shapes == {name: tuple(values.shape) for name, values in bnn.means.items()}
    assert (found.mean_dtypes["0.bias"], found.variance_dtypes["0.bias"]) == ("float16", "bfloat16")
    assert (found.weights, found.units) == (4 * 6 + 6 + 6 * 3 + 3, {"0": 6})
    assert (found.header.classes, found.header.provenance) == (list(CLASSES), PROVENANCE)
    assert found.symmetry == traced()
    with pytest.raises(cs.errors.InputError, match=r"bnn.safetensors: array mean of 0.weight has NaN"):
        cs.load(path)


def test_torch_is_not_imported_where_numpy_will_do(path):
    cs.save(bayesian(symmetry=traced()), path)
    code = (
        "import sys, consilience as cs; found = cs.load(sys.argv[1]); cs.save(found, sys.argv[1]); "
        "assert 'torch' not in sys.modules"
    )
    before = path.read_bytes()
    subprocess.run([sys.executable, "-c", code, path], check=True)
    assert path.read_bytes() == before


def test_a_file_that_needs_torch_says_so(path, monkeypatch):
    cs.save(bayesian(dtype=torch.bfloat16), path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(cs.errors.FileFormatError, match=r"bfloat16, which only torch reads; install torch"):
        cs.load(path)
    assert read_bayesian_summary(path).mean_dtypes["0.bias"] == "bfloat16"


# -- Symmetries.


def test_the_symmetry_that_is_given_goes_before_the_networks_own(path):
    own = replace(traced(), notes=("its own",))
    bnn = bayesian(symmetry=own)
    cs.save(bnn, path)
    assert cs.load(path).symmetry == own
    cs.save(bnn, path, symmetry=traced())
    assert cs.load(path).symmetry == traced()
    cs.save(replace(bnn, symmetry=None), path)
    assert cs.load(path).symmetry is None


def test_deviations_are_not_in_the_symmetry_of_a_file(path):
    symmetry = traced()
    cs.save(bayesian(symmetry=gaussian_symmetry(symmetry, [*symmetry.layouts])), path)
    assert cs.load(path).symmetry == symmetry
    assert cs.load(path).symmetry.proved


def test_tied_weights_stand_once_under_their_first_name(path):
    module, words = Tied(), torch.zeros(2, 3, dtype=torch.long)
    bnn, symmetry = bayesian(module), traced(module, words)
    assert list(bnn.means) == ["words.weight", "out.bias"]
    cs.save(bnn, path, symmetry=symmetry)
    found = cs.load(path)
    alike(found, bnn)
    assert found.symmetry == symmetry
    assert found.symmetry.proved
    assert dict(found.symmetry.aliases) == {"out.weight": "words.weight"}
    assert Network(found.means, found.symmetry).units == Network(module.state_dict(), symmetry).units
    for names in (["out.weight", "out.bias"], ["words.weight", "out.weight", "out.bias"]):
        means = {name: module.state_dict()[name] for name in names}
        with pytest.raises(
            cs.errors.InputError, match=r"cannot be written: .*out.weight is words.weight by another name"
        ):
            cs.save(BayesianNetwork(None, means, {n: v**2 + 1 for n, v in means.items()}), path, symmetry=symmetry)


def test_buffers_that_stay_where_they_are_leave_the_proof_as_it_was(path):
    module = perceptron()
    module.register_buffer("steps", torch.tensor(3))
    symmetry = traced(module)
    assert "steps" in symmetry.layouts
    cs.save(bayesian(module), path, symmetry=symmetry)
    found = cs.load(path).symmetry
    assert set(found.layouts) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert (found.groups, found.proved, found.notes) == (symmetry.groups, True, symmetry.notes)
    assert found.proof.deviation == symmetry.proof.deviation
    assert not symmetry_of_parameters(replace(symmetry, proof=None), [*found.layouts]).proved


def test_without_buffers_that_move_nothing_is_proved_any_more(path):
    module = normalised()
    cs.save(bayesian(module), path, symmetry=traced(module))
    found = cs.load(path).symmetry
    assert set(found.layouts) == set(dict(module.named_parameters()))
    assert (found.groups, found.proof) == ({"0": 6}, None)
    assert [note.partition(":")[0] for note in found.notes] == ["1.running_mean", "1.running_var"]


def test_a_symmetry_of_another_network_is_not_written(path):
    deep = nn.Sequential(*perceptron(), nn.ReLU(), nn.Linear(3, 2))
    convolutions = nn.Sequential(nn.Conv1d(4, 6, 1), nn.ReLU(), nn.Conv1d(6, 3, 1, bias=False))
    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    for module, symmetry, said in (
        (perceptron(), traced(other), "array 2.bias is not in the symmetry"),
        (other, traced(convolutions, torch.zeros(1, 4, 1)), "array 0.weight has shape"),
    ):
        with pytest.raises(cs.errors.InputError, match=f"bnn.safetensors: cannot be written: .*{said}"):
            cs.save(bayesian(module), path, symmetry=symmetry)
    assert not path.exists()
    cs.save(bayesian(perceptron()), path, symmetry=traced(deep))
    assert not cs.load(path).symmetry.proved  # more than the module's parameters moves there


# -- What cannot be written.


def written(path, provenance=None, **changes):
    """Write a network, changed in what `BayesianNetwork` would refuse."""
    means = {"a": np.ones((2, 3)), "b": np.zeros(3)}
    stated = {"means": means, "variances": {name: values + 1 for name, values in means.items()}}
    stated |= dict.fromkeys(("prior", "classes", "n_observations")) | changes
    write_bayesian(path, SimpleNamespace(**stated), None, provenance)


LOOP = []
LOOP.append(LOOP)
DEEP = json.loads("[" * 400 + "]" * 400)

UNWRITABLE = {
    "nothing": ({"means": {}, "variances": {}}, "has no parameters"),
    "no variance": ({"variances": {"a": np.ones((2, 3))}}, "parameter 'b' has no tensor 'variance/b'"),
    "no mean": ({"means": {"a": np.ones((2, 3))}}, "tensor 'variance/b' is of no parameter"),
    "shapes": (
        {"means": {"a": np.ones((3, 2)), "b": np.zeros(3)}},
        r"tensor 'variance/a' has shape \(2, 3\), expected \(3, 2\) as 'mean/a'",
    ),
    "integers": (
        {"means": {"a": np.ones((2, 3), int), "b": np.zeros(3)}},
        "tensor 'mean/a' has type int64, expected one of",
    ),
    "objects": ({"means": {"a": np.array([object()]), "b": np.zeros(3)}}, "array 'mean/a': is object"),
    "sparse": ({"means": {"a": torch.eye(3).to_sparse(), "b": np.zeros(3)}}, "array 'mean/a': has no values"),
    "no text": ({"means": {"\ud800": np.ones(2)}}, "surrogates not allowed"),
    "a number for a name": ({"means": {1: np.ones(2)}, "variances": {1: np.ones(2)}}, "not valid at parameters.0"),
    "prior of others": ({"prior": {"a": 1.0, "b": 1.0, "c": 1.0}}, "'c' has a prior variance, but is no"),
    "no prior": ({"prior": {"a": 1.0}}, "parameter 'b' has no prior variance"),
    "prior of nothing": ({"prior": {"a": 0.0, "b": 1.0}}, "not valid at prior_variances.a"),
    "prior infinite": ({"prior": {"a": math.inf, "b": 1.0}}, "would not be JSON"),
    "prior a text": ({"prior": {"a": "x", "b": 1.0}}, "not valid at prior_variances.a"),
    "classes": ({"classes": ["x", "y", "x"]}, "class 'x' stands twice"),
    "classes of numbers": ({"classes": [1, 2]}, "not valid at classes.0"),
    "provenance": ({"provenance": {"a": math.nan}}, "its header would not be JSON"),
    "provenance of objects": ({"provenance": {"a": object()}}, "its header would not be JSON"),
    "provenance in a loop": ({"provenance": {"a": LOOP}}, "its header would not be JSON"),
    "provenance deep": ({"provenance": {"a": DEEP}}, "nested deeper than 64 levels"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_no_reader_would_take_is_not_written(path, case):
    changes, message = UNWRITABLE[case]
    with pytest.raises(cs.errors.InputError, match=f"bnn.safetensors: .*{message}"):
        written(path, **changes)
    assert not list(path.parent.iterdir())
    written(path)
    assert list(read_bayesian(path).means) == ["a", "b"]


def test_a_folder_that_is_not_there_is_named(path):
    with pytest.raises(cs.errors.InputError, match="there is no folder"):
        cs.save(bayesian(), path / "inside" / "a")


@pytest.mark.parametrize("before", [None, b'{"format": "consilience-bayesian"} of yesterday'])
def test_a_disk_that_refuses_leaves_what_was_there(path, before):
    if before is not None:
        path.write_bytes(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        with pytest.raises(cs.errors.InputError, match=r"bnn.safetensors: cannot be written: .*File too large"):
            cs.save(bayesian(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [one.read_bytes() for one in path.parent.iterdir()] == ([] if before is None else [before])


# -- Forged files.

READERS = (cs.load, read_bayesian, read_bayesian_summary)
BROKEN = ("is empty", "is a pickle or zip", NOT_SAFETENSORS)


@pytest.mark.parametrize("name", [name for name, (_, said) in BAD.items() if said.startswith(BROKEN)])
def test_what_is_no_safetensors_file_is_refused(path, name):
    content, message = BAD[name]
    path.write_bytes(content)
    for read in READERS:
        with pytest.raises(
            cs.errors.FileFormatError, match=f"bnn.safetensors: {message}.*; write it with consilience.save"
        ):
            read(path)


@pytest.mark.parametrize("name", ["nowhere", ".", "n" * 300, "zero\0byte"])
def test_what_cannot_be_opened_is_refused(tmp_path, name):
    for read in READERS:
        with pytest.raises(cs.errors.FileFormatError, match="cannot be read"):
            read(tmp_path / name)


def test_a_file_cut_anywhere_is_refused(path):
    cs.save(bayesian(), path)
    content = path.read_bytes()
    for length in (*range(0, 40, 7), *range(40, len(content), 101), len(content) - 1):
        path.write_bytes(content[:length])
        for read in READERS:
            with pytest.raises(cs.errors.FileFormatError, match=r"bnn.safetensors: is (empty|truncated)"):
                read(path)


def test_files_of_other_kinds_are_told_apart(path):
    bnn = bayesian()
    cs.save(bnn, path)
    for read in (read_network, read_network_summary, read_symmetry):
        with pytest.raises(cs.errors.FileFormatError, match=r"is a Bayesian network, expected a network"):
            read(path)
    with pytest.raises(cs.errors.FileFormatError, match="expected a file of Fisher information"):
        read_fisher(path)
    others = path.with_name("others")
    cs.save(bnn.module, others, symmetry=traced())
    network = others.read_bytes()
    for content in (network, GOOD, to_safetensors({"a": np.ones(2)}), to_safetensors({}, {"format": "pt"})):
        others.write_bytes(content)
        for read in (read_bayesian, read_bayesian_summary):
            with pytest.raises(
                cs.errors.FileFormatError, match=r"others: (is|has) .*a file of a Bayesian network; write it with"
            ):
                read(others)


def honest(path):
    """Return the document and the tensors of an honest file."""
    bnn = bayesian(prior_variances=2.0, classes=CLASSES)
    write_bayesian_network(path, bnn, traced(), PROVENANCE)
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["consilience"]), load_file(path)


def changed(document, *keys, value):
    """Put a value somewhere into a document."""
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


HEADERS = {
    "newer": (("format_version",), 2, "format version 2, this library reads up to 1; update consilience"),
    "huge version": (("format_version",), 10**30, "update consilience"),
    "version zero": (("format_version",), 0, "not valid at format_version"),
    "version text": (("format_version",), "1", "not valid at format_version"),
    "surplus": (("surprise",), 1, "not valid at surprise"),
    "library": (("library_version",), 1, "not valid at library_version"),
    "no parameters": (("parameters",), [], "has no parameters"),
    "parameters": (("parameters",), {"0.weight": 1}, "not valid at parameters"),
    "parameter number": (("parameters", 0), 5, "not valid at parameters.0"),
    "parameter twice": (("parameters", 0), "2.bias", "parameter '2.bias' stands twice"),
    "other parameter": (("parameters", 0), "x", r"parameter '0.weight' has no prior|'x' has no prior variance"),
    "prior zero": (("prior_variances", "2.bias"), 0.0, "not valid at prior_variances.2.bias"),
    "prior negative": (("prior_variances", "2.bias"), -1.0, "not valid at prior_variances.2.bias"),
    "prior nan": (("prior_variances", "2.bias"), math.nan, "not valid at prior_variances.2.bias"),
    "prior infinite": (("prior_variances", "2.bias"), math.inf, "not valid at prior_variances.2.bias"),
    "prior beyond": (("prior_variances", "2.bias"), 10**400, "not valid at prior_variances.2.bias"),
    "prior text": (("prior_variances", "2.bias"), "1", "not valid at prior_variances.2.bias"),
    "prior number": (("prior_variances",), 1.0, "not valid at prior_variances"),
    "prior surplus": (("prior_variances", "x"), 1.0, "'x' has a prior variance, but is no parameter"),
    "classes": (("classes",), "abc", "not valid at classes"),
    "class number": (("classes", 1), 7, "not valid at classes.1"),
    "class twice": (("classes", 1), "no", "class 'no' stands twice"),
    "provenance": (("provenance",), [], "not valid at provenance"),
    "provenance nan": (("provenance", "seed"), math.nan, "not valid at provenance"),
    "provenance deep": (("provenance", "seed"), DEEP, "nested deeper than 64 levels"),
    "symmetry": (("symmetry",), [], "not valid at symmetry"),
    "symmetry empty": (("symmetry",), {}, "its symmetry is not valid at groups: Field required"),
    "symmetry deep": (("symmetry", "notes"), DEEP, "nested deeper than 64 levels"),
    "symmetry of more": (
        ("symmetry", "arrays", "x"),
        {"axes": [], "blocks": 1},
        "array x is missing; fuse networks of one",
    ),
    "symmetry of deviations": (
        ("symmetry", "arrays", "0.bias/deviation"),
        {"axes": [], "blocks": 1},
        "array 0.bias/deviation is missing",
    ),
    "symmetry of other shapes": (
        ("symmetry", "arrays", "2.bias", "axes", 0, "segments", 0, 2),
        4,
        r"array 2.bias has shape \(3,\); by its groups \(none\) it should have \(4,\)",
    ),
    "alias of a parameter": (
        ("symmetry", "aliases", "0.bias"),
        "2.bias",
        "'0.bias' is said to be '2.bias', but has axes of its own",
    ),
    "group that is not there": (
        ("symmetry", "arrays", "0.bias", "axes", 0, "segments", 0, 0),
        "lost",
        "follows the group 'lost', which does not exist",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HEADERS)
def test_forged_headers_are_refused(path, case):
    place, value, message = HEADERS[case]
    document, tensors = honest(path)
    changed(document, *place, value=value)
    path.write_bytes(to_safetensors(tensors, {"consilience": json.dumps(document)}))
    for read in READERS:
        with pytest.raises(cs.errors.InputError, match=f"^.*bnn.safetensors: .*(?:{message})"):
            read(path)


def test_aliases_that_are_parameters_are_refused(path):
    document, tensors = honest(path)
    document["symmetry"]["arrays"].pop("0.bias")
    document["symmetry"]["aliases"]["0.bias"] = "2.bias"
    path.write_bytes(to_safetensors(tensors, {"consilience": json.dumps(document)}))
    for read in READERS:
        with pytest.raises(cs.errors.InputError, match=r"bnn.safetensors: parameter 0.bias is 2.bias by another name"):
            read(path)


def test_a_symmetry_that_was_changed_is_no_longer_proved(path):
    document, tensors = honest(path)
    changed(document, "symmetry", "arrays", "0.bias", "axes", 0, "segments", 0, value=[None, 1, 6])
    path.write_bytes(to_safetensors(tensors, {"consilience": json.dumps(document)}))
    assert not cs.load(path).symmetry.proved


TEXTS = {
    "json": ("{nope", "metadata is not valid JSON"),
    "deep": ("[" * 5_000 + "]" * 5_000, "metadata is not valid JSON"),
    "digits": ('{"format_version": ' + "9" * 5000 + "}", "metadata is not valid JSON"),
    "twice": ('{"format": "consilience-bayesian", "format": "x"}', "'format' stands twice in one object"),
    "list": ("[]", "metadata is not valid at the whole: Input should be a valid dictionary"),
    "null": ("null", "metadata is not valid at the whole: Input should be a valid dictionary"),
    "other format": ('{"format": "consilience-plane"}', "is a loss plane, expected a file of a Bayesian network"),
    "format list": ('{"format": []}', "metadata is not valid at format: Input should be 'consilience-bayesian'"),
    "nothing else": ('{"format": "consilience-bayesian"}', "metadata is not valid at format_version: Field required"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_are_no_header_are_refused(path, case):
    text, message = TEXTS[case]
    path.write_bytes(to_safetensors({"mean/a": np.ones(2), "variance/a": np.ones(2)}, {"consilience": text}))
    for read in (read_bayesian, read_bayesian_summary):
        with pytest.raises(cs.errors.FileFormatError, match=f"^.*bnn.safetensors: .*{message}"):
            read(path)
    with pytest.raises(cs.errors.FileFormatError, match=r"bnn.safetensors: its metadata is not valid"):
        cs.load(path)


def put(tensor, index, value):
    return lambda tensors: tensors[tensor].reshape(-1).__setitem__(index, value)


def retyped(tensor, dtype):
    return lambda tensors: tensors.update({tensor: tensors[tensor].astype(dtype)})


NUMBERS = {
    "nan mean": (put("mean/2.bias", 1, math.nan), "mean of 2.bias has NaN or infinite"),
    "infinite mean": (put("mean/2.bias", 1, -math.inf), "mean of 2.bias has NaN or infinite"),
    "both infinities": (put("mean/2.bias", slice(2), [math.inf, -math.inf]), "mean of 2.bias has NaN or infinite"),
    "nan variance": (put("variance/2.bias", 1, math.nan), "variance of 2.bias has NaN or infinite"),
    "infinite variance": (put("variance/2.bias", 1, math.inf), "variance of 2.bias has NaN or infinite"),
    "zero variance": (put("variance/2.bias", 1, 0.0), "2.bias has variances that are not positive, smallest 0"),
    "minus zero": (put("variance/2.bias", 1, -0.0), "2.bias has variances that are not positive"),
    "negative variance": (put("variance/0.weight", 7, -2.0), "0.weight has variances that are not positive, .* -2"),
    "too small for its type": (
        lambda tensors: tensors.update({"variance/2.bias": np.full(3, 1e-9, np.float16)}),
        "2.bias has variances that are not positive, smallest 0",
    ),
}

SHAPES = {
    "no variance": (lambda tensors: tensors.pop("variance/0.bias"), "'0.bias' has no tensor 'variance/0.bias'"),
    "no mean": (lambda tensors: tensors.pop("mean/0.bias"), "'0.bias' has no tensor 'mean/0.bias'"),
    "nothing": (lambda tensors: tensors.clear(), "3 more such problems"),
    "surplus": (lambda tensors: tensors.update({"mean/x": np.ones(2)}), "tensor 'mean/x' is of no parameter"),
    "without its kind": (lambda tensors: tensors.update({"x": np.ones(2)}), "tensor 'x' is of no parameter"),
    "shape": (
        lambda tensors: tensors.update({"variance/0.bias": np.ones((6, 1), np.float32)}),
        r"tensor 'variance/0.bias' has shape \(6, 1\), expected \(6,\) as 'mean/0.bias'",
    ),
    "one for all": (
        lambda tensors: tensors.update({"variance/0.bias": np.array(1.0)}),
        r"tensor 'variance/0.bias' has shape \(\), expected \(6,\)",
    ),
    "integers": (retyped("mean/0.bias", np.int64), "tensor 'mean/0.bias' has type int64, expected one of float64"),
    "integer variances": (retyped("variance/0.bias", np.uint8), "tensor 'variance/0.bias' has type uint8"),
    "truth": (retyped("mean/0.bias", bool), "tensor 'mean/0.bias' has type bool"),
    "complex": (retyped("mean/0.bias", np.complex64), "tensor 'mean/0.bias' has type complex64"),
}


@pytest.mark.parametrize("case", [*NUMBERS, *SHAPES])
def test_forged_tensors_are_refused(path, case):
    change, message = (NUMBERS | SHAPES)[case]
    document, tensors = honest(path)
    change(tensors)
    path.write_bytes(to_safetensors(tensors, {"consilience": json.dumps(document)}))
    for read in READERS if case in SHAPES else (cs.load, read_bayesian):
        with pytest.raises(cs.errors.InputError, match=f"bnn.safetensors: .*{message}"):
            read(path)


def claiming(dtype, shape, size):
    """Return a file whose header claims this of the mean and variance of its only parameter."""
    document = {"format": "consilience-bayesian", "format_version": 1, "library_version": "1", "parameters": ["a"]}
    document |= {"prior_variances": None, "classes": None, "symmetry": None, "provenance": None}
    entry = {"dtype": dtype, "shape": list(shape)}
    header = {"__metadata__": {"consilience": json.dumps(document)}}
    for number, name in enumerate(("mean/a", "variance/a")):
        header[name] = {**entry, "data_offsets": [number * size, (number + 1) * size]}
    return raw(header, b"\x3c" * (2 * size))


CLAIMS = {
    "four bits": (claiming("F4", (8,), 4), "tensor 'mean/a' has type F4, expected one of float64"),
    "eight bits": (claiming("F8_E4M3", (4,), 4), "tensor 'mean/a' has type float8_e4m3fn, expected one of float64"),
    "dimensions": (claiming("F32", [1] * 100, 4), "tensor 'mean/a' cannot be read .*dimension"),
    "endless": (claiming("F32", (2**62, 0), 0), "tensor 'mean/a' cannot be read"),
    "beyond torch": (claiming("BF16", (2**63, 0), 0), "tensor 'mean/a' cannot be read"),
    "lying": (claiming("F32", (3,), 8), NOT_SAFETENSORS),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_forged_types_and_shapes_are_refused(path, case):
    content, message = CLAIMS[case]
    path.write_bytes(content)
    for read in (cs.load, read_bayesian):
        with pytest.raises(cs.errors.FileFormatError, match=f"bnn.safetensors: .*{message}"):
            read(path)
    path.write_bytes(claiming("F32", (2,), 8))
    assert cs.load(path).means["a"].shape == (2,)

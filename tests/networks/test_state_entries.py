"""Entries of state dicts that are no dense tensors: they work, or end in one line that names them."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import consilience as cs
from tests.copies import COPIES

X = torch.randn(4, 5)


class WithState(nn.Module):
    """A layer with extra state."""

    def __init__(self, extra):
        super().__init__()
        self.layer, self.extra = nn.Linear(5, 3), extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state

    def forward(self, x):
        return self.layer(x)


EXTRA = {"mapping": ({"version": 2}, {"version": 3}), "bytes": tuple(torch.ones(n, dtype=torch.uint8) for n in (2, 5))}


@pytest.mark.parametrize("kind", EXTRA)
@pytest.mark.parametrize("method", [None, "average", "rebasin"])
def test_extra_state_is_that_of_a_module_and_a_note_says_so(kind, method):
    nets = [WithState(extra) for extra in EXTRA[kind]]
    fusion = cs.fuse(nets, method, example=X)
    assert fusion.model.extra is not None
    assert any("_extra_state: extra state has no mean" in note for note in fusion.notes)
    assert fusion.provenance["result"]["notes"]


@pytest.mark.parametrize("kind", EXTRA)
def test_extra_state_of_state_dicts_is_the_modules_or_left_out(kind):
    states = [WithState(extra).state_dict() for extra in EXTRA[kind]]
    fusion = cs.fuse(states, "average", module=lambda: WithState("own"), example=X)
    assert fusion.model.extra == "own"
    alone = cs.fuse(states, "average")
    assert set(alone.model) == {"layer.weight", "layer.bias"}
    assert any("left out" in note for note in alone.notes)


def test_state_dicts_are_saved_without_extra_state_and_refused_with_other_objects(tmp_path):
    cs.save(WithState({"version": 2}).state_dict(), tmp_path / "a.safetensors")
    assert set(load_file(tmp_path / "a.safetensors")) == {"layer.weight", "layer.bias"}
    with pytest.raises(cs.errors.InputError, match="state dict: entry epoch is of type int, expected a tensor"):
        cs.save({"w": torch.ones(2), "epoch": 3}, tmp_path / "b.safetensors")


def test_networks_with_extra_state_are_saved_and_described(tmp_path):
    cs.save(WithState({"version": 2}), tmp_path / "a.safetensors")
    assert set(cs.describe(WithState(None), example=X, n_observations=9).arrays) == {"layer.weight", "layer.bias"}


LAZY = {
    "linear": lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3)),
    "batch normalisation": lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(5, 3)),
}


@COPIES
@pytest.mark.parametrize("kind", LAZY)
def test_lazy_layers_are_initialised_by_the_example(kind):
    net = LAZY[kind]()
    assert cs.fuse([net, LAZY[kind]()], "average", example=X).model(X).shape == (4, 3)
    assert any(isinstance(values, nn.UninitializedParameter) for values in net.parameters())  # the caller's stays


@COPIES
def test_a_lazy_template_takes_the_weights_of_state_dicts():
    state = nn.Sequential(nn.Linear(5, 3)).state_dict()
    model = cs.fuse([state, state], "average", module=lambda: nn.Sequential(nn.LazyLinear(3)), example=X).model
    assert torch.equal(model[0].weight, state["0.weight"])


@pytest.mark.parametrize("scripted", [torch.jit.script, lambda net: torch.jit.trace(net, X)], ids=["script", "trace"])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_modules_of_torchscript_are_averaged_and_refused_where_they_must_be_traced(scripted, tmp_path):
    plain = [nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).eval() for _ in range(2)]
    nets = [scripted(net) for net in plain]
    model = cs.fuse(nets, "average").model
    torch.testing.assert_close(model.state_dict()["0.weight"], (plain[0][0].weight + plain[1][0].weight) / 2)
    assert model(X).shape == (4, 3)
    cs.save(nets[0], tmp_path / "a.safetensors")
    with pytest.raises(cs.errors.UnsupportedError, match="a TorchScript module cannot be traced"):
        cs.fuse(nets, "rebasin", example=X)


def quantised():
    net = nn.Linear(5, 3)
    net.register_buffer("packed", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    return net


def sparse(layout):
    net = nn.Linear(5, 3)
    net.register_buffer("adjacency", torch.eye(3).to_sparse(layout=layout))
    return net


REFUSED = {
    "lazy": (lambda: nn.LazyLinear(3), r"weight has no shape yet.*give `example="),
    "quantised": (quantised, r"packed is quantised \(qint8\); convert it with `dequantize\(\)`"),
    "sparse": (lambda: sparse(torch.sparse_coo), r"adjacency is sparse \(sparse_coo\); convert it with `to_dense\(\)`"),
    "meta": (lambda: nn.Linear(5, 3, device="meta"), r"weight has no values \(device meta\)"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # which torch will remove
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("call", ["fuse", "fuse state dicts", "save", "describe"])
def test_entries_without_dense_values_are_refused_in_a_line_each(kind, call, tmp_path):
    make, text = REFUSED[kind]
    calls = {
        "fuse": lambda: cs.fuse([make(), make()], "average"),
        "fuse state dicts": lambda: cs.fuse([make().state_dict()] * 2, "average"),
        "save": lambda: cs.save(make(), tmp_path / "a.safetensors"),
        "describe": lambda: cs.describe(make(), n_observations=10),
    }
    with pytest.raises(cs.errors.InputError, match=text):
        calls[call]()


@pytest.mark.parametrize(
    ("entry", "text"),
    [(3, "entry x is of type int, expected a tensor"), ("a", "of type str"), ((1, 2), "as quantised layers have")],
)
def test_entries_that_are_no_tensors_are_refused_by_name(entry, text):
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse([{"w": torch.ones(2), "x": entry}] * 2, "average")

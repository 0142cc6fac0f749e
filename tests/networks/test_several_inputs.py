"""Networks of several inputs, of masks, and of ids among numbers are described, drawn for and fused by default."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import consilience as cs
from consilience.errors import InputError
from consilience.files.safetensors_file import as_file
from consilience.networks.descriptions.files import read_description
from consilience.networks.descriptions.input_parts import described_arguments, reads_tokens
from consilience.networks.synthetic.draws import draw_inputs
from tests.networks.position_nets import Causal, Pair, Tabular, table, texts, trained, wines

FAST = cs.methods.Auto(n_inputs=200, steps=40)


@pytest.fixture(scope="module")
def pairs():
    rows, labels = wines()

    def loss(net, chosen):
        return functional.cross_entropy(net(rows[chosen, :6], rows[chosen, 6:]), labels[chosen])

    return [trained(Pair(seed), loss, 80) for seed in range(2)]


@pytest.mark.parametrize("form", ["tuple", "mapping", "batches", "labels behind"])
def test_several_inputs_are_described_alike_by_position_and_by_name(pairs, form):
    rows, labels = wines()
    x, z, y = rows[:110, :6], rows[:110, 6:], labels[:110]
    data = {
        "tuple": ((x, z), y),
        "mapping": {"x": x, "z": z, "labels": y},
        "batches": [(x[part], z[part], y[part]) for part in (slice(0, 60), slice(60, 110))],
        "labels behind": (x, z, y),
    }[form]
    described = [cs.describe(net, data) for net in pairs]
    said = described[0].description
    assert [part.shape for part in said.parts] == [(6,), (7,)]
    assert [part.name for part in said.parts] == (["x", "z"] if form == "mapping" else [None, None])
    assert said.class_counts.sum() == 110
    np.testing.assert_allclose(said.inputs.mean, rows[:110].mean(dim=0), atol=1e-5)
    fusion = cs.fuse(described, FAST)
    assert fusion.verdict.criterion == "error on inputs drawn from the sites' class moments"

    def accuracy(net):
        return float((net(rows[110:, :6], rows[110:, 6:]).argmax(dim=1) == labels[110:]).float().mean())

    assert accuracy(fusion.model) >= min(map(accuracy, pairs)) - 0.02


def test_several_inputs_come_as_unlabelled_inputs(pairs):
    rows, _ = wines()
    x, z = rows[80:, :6], rows[80:, 6:]
    by_form = [cs.fuse(pairs, FAST, inputs=inputs).verdict for inputs in ((x, z), {"x": x, "z": z}, [(x, z)])]
    assert by_form[0].candidates == by_form[1].candidates == by_form[2].candidates
    assert len(by_form[0].candidates) > 3


def test_a_description_of_several_inputs_is_saved_and_draws_what_the_network_takes(pairs, tmp_path):
    rows, labels = wines()
    described = cs.describe(pairs[0], {"x": rows[:, :6], "z": rows[:, 6:], "labels": labels})
    cs.save(described, tmp_path / "lund.safetensors")
    loaded = read_description(as_file(tmp_path / "lund.description.safetensors"))
    assert loaded.parts == described.description.parts
    arguments = described_arguments(loaded, draw_inputs([loaded], 30).inputs)
    assert {name: tuple(one.shape) for name, one in arguments.kwargs.items()} == {"x": (30, 6), "z": (30, 7)}
    by_position = cs.describe(pairs[1], ((rows[:, :6], rows[:, 6:]), labels))
    with pytest.raises(InputError, match=r"has arguments real, real, and those of .* are x, z"):
        cs.fuse([described, by_position])


def test_arguments_of_other_lengths_are_refused(pairs):
    rows, _ = wines()
    with pytest.raises(InputError, match="arguments of 70, 80 observations"):
        cs.describe(pairs[0], {"x": rows[:80, :6], "z": rows[:70, 6:]})


class Reader(nn.Module):
    """A classifier of texts with a mask, and kinds of segments that are all the first."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.kinds, self.last = nn.Embedding(20, 8), nn.Embedding(2, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask, token_type_ids):
        states = self.words(input_ids) + self.kinds(token_type_ids)
        mask = attention_mask[:, :, None].float()
        return self.last((states * mask).sum(dim=1) / mask.sum(dim=1))


def encoded(n, seed):
    """Return texts of several lengths with their masks, and a class for each."""
    tokens, lengths = texts(n, seed), torch.as_tensor(np.random.default_rng(seed).integers(3, 9, n))
    mask = (torch.arange(8) < lengths[:, None]).long()
    counts = ((tokens < 10) * mask).sum(dim=1) * 2 > mask.sum(dim=1)
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": torch.zeros_like(tokens), "labels": counts}


def test_texts_with_masks_are_described_by_the_tokens_that_count():
    data = encoded(900, 0)

    def loss(net, chosen):
        some = {name: values[chosen] for name, values in data.items()}
        return functional.cross_entropy(net(*list(some.values())[:3]), some["labels"].long())

    nets = [trained(Reader(seed), loss, 900) for seed in range(2)]
    described = [cs.describe(net, {**data, "labels": data["labels"].long()}) for net in nets]
    said = described[0].description
    assert [(part.name, part.kind) for part in said.parts] == [
        ("input_ids", "tokens"), ("attention_mask", "mask"), ("token_type_ids", "zeros"),
    ]  # fmt: skip
    tokens = data["input_ids"][data["attention_mask"] == 1]
    counts = torch.bincount(tokens[tokens > 0], minlength=20)  # 0 fills up, where only a mask tells
    assert bool((torch.as_tensor(said.tokens.unigrams)[1:] <= counts[1:]).all())
    assert said.tokens.unigrams[1:].sum() > 0.9 * int(counts[1:].sum())
    fusion = cs.fuse(described, FAST)
    assert fusion.verdict.criterion == "error on inputs drawn from the sites' class moments"
    test = encoded(500, 5)
    arguments = list(test.values())[:3]

    def accuracy(net):
        return float((net(*arguments).argmax(dim=1) == test["labels"]).float().mean())

    assert accuracy(fusion.model) >= min(map(accuracy, nets)) - 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_mask": torch.zeros(30, 8, dtype=torch.long)}, "attention_mask hides all tokens"),
        ({"input_ids": torch.full((30, 8), 20)}, "does not take an input such as"),
        ({"token_type_ids": torch.rand(30, 8)}, "does not take an input such as"),
        ({"input_ids": torch.zeros(0, 8, dtype=torch.long)}, "observations"),
    ],
)
def test_bad_texts_are_refused_in_a_line(change, message):
    with pytest.raises(InputError, match=message):
        cs.describe(Reader(), {**encoded(30, 0), **change})


def test_ids_are_drawn_from_their_values(tmp_path):
    def loss_on(data):
        return lambda net, chosen: functional.cross_entropy(net(data[0][chosen]), data[1][chosen])

    data = [table(300, seed) for seed in range(2)]
    nets = [trained(Tabular(seed), loss_on(of_site), 300) for seed, of_site in enumerate(data)]
    described = [cs.describe(net, of_site) for net, of_site in zip(nets, data, strict=True)]
    whole = described[0].description.whole_columns
    assert list(whole) == [0]
    values, counts = np.unique(data[0][0][:, 0].numpy(), return_counts=True)
    np.testing.assert_array_equal(whole[0], np.column_stack([values, counts]))
    cs.save(described[0], tmp_path / "lund.safetensors")
    loaded = read_description(as_file(tmp_path / "lund.description.safetensors"))
    drawn = draw_inputs([loaded], 7000, labelled=True).inputs[:, 0].numpy()
    shares = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(shares[0], values)
    np.testing.assert_allclose(shares[1] / 7000, counts / 300, atol=0.05)
    fusion = cs.fuse(described, FAST)
    X, y = table(2000, 9)

    def accuracy(net):
        return float((net(X).argmax(dim=1) == y).float().mean())

    assert fusion.verdict.criterion == "error on inputs drawn from the sites' class moments"
    assert accuracy(fusion.model) >= min(map(accuracy, nets)) - 0.02


def test_rare_ids_are_not_said():
    X, y = table(300, 0)
    X[:3, 0] = 6.0
    X[3:, 0] = X[3:, 0].clamp(max=5.0)
    described = cs.describe(Tabular(), (X, y)).description
    assert 6.0 not in described.whole_columns[0][:, 0]


def test_columns_of_ids_alone_are_no_text():
    class Categories(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(n, 3) for n in (4, 9)])
            self.last = nn.Linear(6, 2)

        def forward(self, ids):
            return self.last(torch.cat([table(ids[:, n]) for n, table in enumerate(self.tables)], dim=1))

    ids = torch.stack([torch.arange(200) % 4, torch.arange(200) % 9], dim=1)
    net = Categories()
    assert not reads_tokens(net, ids)
    assert reads_tokens(Causal(), texts(4, 0))
    nets = [cs.describe(Categories(), (ids, torch.arange(200) % 2)) for _ in range(2)]
    assert sorted(nets[0].description.whole_columns) == [0, 1]
    assert cs.fuse(nets, FAST).verdict.code != "no_inputs"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.full((40, 8), 99), "inputs: Causal does not take an input such as int64"),
        (torch.zeros(0, 8, dtype=torch.long), "inputs: expected a tensor, .* found none"),
        ([], "inputs: expected a tensor, .* found none"),
        ("texts.npy", "inputs: expected a tensor, .* found the text 'texts.npy'"),
        ([texts(20, 0), texts(20, 1)[:, :5]], "inputs: has batches of inputs of several shapes; pad all of them"),
    ],
)
def test_bad_unlabelled_inputs_are_refused_in_a_line(inputs, message):
    with pytest.raises(InputError, match=message):
        cs.fuse([Causal(0), Causal(1)], FAST, inputs=inputs)


def test_training_mode_is_left_as_it_is(pairs):
    rows, _ = wines()
    for net in pairs:
        net.train()
    cs.fuse(pairs, FAST, inputs=(rows[:, :6], rows[:, 6:]))
    assert all(net.training for net in pairs)
    for net in pairs:
        net.eval()


def test_arguments_may_change_their_order_and_not_what_they_are():
    data = {**encoded(600, 0), "labels": encoded(600, 0)["labels"].long()}
    first, second = ({name: one[part] for name, one in data.items()} for part in (slice(0, 300), slice(300, 600)))
    turned = dict(reversed(second.items()))
    said, again = (cs.describe(Reader(), batches).description for batches in ([first, second], [first, turned]))
    assert [part.kind for part in said.parts] == ["tokens", "mask", "zeros"]
    np.testing.assert_array_equal(said.tokens.unigrams, again.tokens.unigrams)
    with pytest.raises(InputError, match="neither zero nor their mask"):
        cs.describe(Reader(), [first, {**second, "token_type_ids": torch.ones(300, 8, dtype=torch.long)}])


def test_looking_for_ids_leaves_statistics_of_channels_alone():
    X, y = table(300, 0)
    described = cs.describe(Tabular(), (X, y)).description
    with torch.no_grad():
        net = Tabular()
        hidden = net.layers[0](torch.cat([net.embedding(X[:, 0].long()), X[:, 1:]], dim=1))
    np.testing.assert_allclose(described.channels["layers.0"].mean, hidden.mean(dim=0), atol=1e-5)

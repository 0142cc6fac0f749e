"""Networks that answer by token, by pixel or with several heads are compared, described and fused by default."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import consilience as cs
from consilience.errors import InputError, UnsupportedError
from consilience.files.safetensors_file import as_file
from consilience.networks.descriptions.files import read_description
from consilience.networks.example import Example
from consilience.networks.output_layout import as_row_outputs, draw_positions, is_inside, layout_of
from tests.networks.position_nets import (
    LENGTH,
    VOCABULARY,
    Causal,
    Heads,
    Maps,
    language_model,
    next_token_loss,
    pictures,
    texts,
    trained,
    wines,
)

FAST = cs.methods.Auto(n_inputs=200, steps=40)


class Returns(nn.Module):
    """A network of two inputs that returns whatever a function makes of them."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 5), function

    def forward(self, x):
        return self.function(self.layer, x)


@pytest.mark.parametrize(
    ("net", "inputs", "widths", "axis", "n_positions", "is_next"),
    [
        (Causal(), texts(3, 0), (VOCABULARY,), -1, LENGTH, True),
        (Causal(causal=False), texts(3, 0), (VOCABULARY,), -1, LENGTH, False),
        (Maps(), torch.rand(2, 1, 8, 8), (3,), 1, 64, False),
        (Heads(), torch.rand(2, 13), (3, 1), None, 1, False),
        (nn.Linear(4, 5), torch.rand(2, 7, 4), (5,), -1, 7, False),
        (nn.Linear(4, 5), torch.rand(2, 4), (5,), None, 1, False),
    ],
)
def test_rows_are_found_by_the_axes_that_outputs_share_with_inputs(net, inputs, widths, axis, n_positions, is_next):
    layout = layout_of(net, inputs)
    assert (layout.widths, layout.class_axis, layout.n_positions) == (widths, axis, n_positions)
    assert layout.is_next_token == is_next


def test_rows_at_positions_are_the_outputs_there():
    net, images = Maps(), torch.rand(5, 1, 8, 8)
    layout = layout_of(net, images)
    positions = draw_positions(layout, 5, 3, np.random.default_rng(0))
    with torch.no_grad():
        rows, maps = as_row_outputs(net, layout, images)(images, positions), net(images)
    for n in range(5):
        for p, place in enumerate(positions[n].tolist()):
            torch.testing.assert_close(rows[n, p], maps[n, :, place // 8, place % 8])


def test_outputs_of_several_heads_stand_side_by_side():
    net, rows = Heads(), torch.rand(4, 13)
    layout = layout_of(net, rows)
    beside, answer = as_row_outputs(net, layout, rows)(rows), net(rows)
    assert [beside[:, head].shape[1] for head in layout.heads] == [3, 1]
    torch.testing.assert_close(beside, torch.cat([answer["classes"], answer["number"][:, None]], dim=1))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda layer, x: layer(x) - layer(x).mean(dim=0), "depend on the others of its batch"),
        (lambda layer, x: layer(x) @ layer(x).T, "depend on the others of its batch"),
        (lambda layer, x: layer(x).mean(), "do not return one row for each input"),
        (lambda layer, x: "text", "do not return one row for each input"),
        (lambda layer, x: (layer(x), layer(x)[:, None, None]), "several outputs, not a row of each"),
        (lambda layer, x: layer(x)[:, None, None, :, None].expand(-1, 2, 2, -1, 2), "neither by input nor by position"),
    ],
)
def test_outputs_that_nobody_understands_are_refused_before_the_work(function, message):
    nets = [Returns(function), Returns(function)]
    with pytest.raises(UnsupportedError, match=message):
        layout_of(nets[0], torch.rand(3, 4))
    with pytest.warns(cs.errors.UncomparedWarning, match=message):
        described = cs.describe(nets[0], torch.rand(120, 4)).description
    assert any(message in note and "will not compare candidates" in note for note in described.notes)
    with pytest.warns(cs.errors.UncomparedWarning, match=message):
        assert cs.check(nets, FAST, inputs=torch.rand(60, 4)) == []
    verdict = cs.fuse(nets, FAST, inputs=torch.rand(60, 4)).verdict
    assert verdict.code == "no_inputs"
    assert message in verdict.text


def test_positions_are_those_that_count_and_have_a_token_behind():
    tokens = texts(50, 1)
    tokens[:, 5:] = 3
    net = Causal(padding=3)
    layout, rng = layout_of(net, tokens), np.random.default_rng(0)
    inside = is_inside(net, tokens)
    positions = draw_positions(layout, 50, 8, rng, inside)
    has_next = (inside.gather(1, positions) & inside.gather(1, positions + 1)).all(dim=1)
    assert bool(has_next[(tokens[:, :5] != 3).all(dim=1)].all())
    mask = (torch.arange(LENGTH) < 4).long().expand(50, -1)
    named = Example(kwargs={"input_ids": texts(50, 1), "attention_mask": mask})
    assert int(draw_positions(layout, 50, 8, rng, is_inside(net, named)).max()) == 2
    hiding = Example(kwargs={"input_ids": texts(2, 1), "attention_mask": torch.zeros(2, LENGTH)})
    with pytest.raises(UnsupportedError, match="hides all tokens"):
        is_inside(net, hiding)


@pytest.fixture(scope="module")
def language_models():
    return {name: language_model(seed, texts(300, seed)) for seed, name in enumerate(("lund", "oslo"))}


@pytest.mark.parametrize("form", ["ids", "batches", "encodings"])
def test_language_models_are_compared_by_real_texts(language_models, form):
    held, test = texts(200, 8), texts(400, 9)
    mask = torch.ones_like(held)
    inputs = {
        "ids": held,
        "batches": [{"input_ids": part, "labels": part} for part in held.split(64)],
        "encodings": {"attention_mask": mask, "input_ids": held, "labels": held},
    }[form]
    fusion = cs.fuse(language_models, FAST, inputs=inputs)
    assert fusion.verdict.criterion == "next-token loss in nats on the given texts"
    assert fusion.verdict.harmless is None
    best = min(next_token_loss(net, test) for net in language_models.values())
    assert next_token_loss(fusion.model, test) <= best + 0.02
    of_site = fusion.verdict.candidates["site:lund"]
    assert of_site == pytest.approx(next_token_loss(language_models["lund"], held), abs=0.3)


@pytest.mark.parametrize("masked", [False, True])
def test_language_models_are_evaluated_by_the_next_tokens_of_texts(language_models, masked):
    lund, oslo = language_models.values()
    tokens = texts(150, 5)
    data = tokens
    if masked:
        data = {"input_ids": tokens, "attention_mask": (torch.arange(LENGTH) < 5).long().expand(150, -1)}
        tokens = tokens[:, :5]
    evaluation = cs.evaluate(lund, lund if masked else oslo, data)
    accuracy, loss = evaluation.scores
    assert loss.fused == pytest.approx(next_token_loss(lund, tokens), rel=1e-5)
    assert 0 < accuracy.fused <= 100
    if masked:
        assert evaluation.difference.mean == 0.0
    else:
        assert loss.own == pytest.approx(next_token_loss(oslo, tokens), rel=1e-5)
    with pytest.raises(InputError, match="does not take these texts"):
        cs.evaluate(lund, nn.Sequential(nn.Linear(3, 2)), tokens)


def test_described_language_models_are_compared_by_synthetic_texts(language_models, tmp_path):
    sites = {
        name: cs.describe(net, (texts(300, seed), texts(300, seed).roll(-1, 1)))
        for seed, (name, net) in enumerate(language_models.items())
    }
    described = sites["lund"].description
    assert described.classes is None
    assert described.tokens is not None
    loss = next_token_loss(language_models["lund"], texts(300, 0))
    assert described.own_loss == pytest.approx(loss, rel=1e-3)
    cs.save(sites["lund"], tmp_path / "lund.safetensors")
    assert read_description(as_file(tmp_path / "lund.description.safetensors")).own_loss == described.own_loss
    fusion = cs.fuse(sites, FAST)
    assert fusion.verdict.criterion == "divergence in nats from the sites' ensemble"
    best = min(next_token_loss(net, texts(400, 9)) for net in language_models.values())
    assert next_token_loss(fusion.model, texts(400, 9)) <= best + 0.02


def test_maps_are_described_by_pixels_and_compared(tmp_path):
    images, labels = pictures()

    def loss(net, rows):
        return functional.cross_entropy(net(images[rows]), labels[rows])

    def test_loss(net):
        with torch.no_grad():
            return float(loss(net, slice(400, 599)))

    sites = {name: slice(start, start + 200) for name, start in (("lund", 0), ("oslo", 200))}
    nets = {name: trained(Maps(seed), loss, 200) for seed, name in enumerate(sites)}
    described = [cs.describe(net, (images[sites[name]], labels[sites[name]])) for name, net in nets.items()]
    counts = described[0].description.class_counts
    shares = torch.bincount(labels[:200].flatten()) / labels[:200].numel()
    np.testing.assert_allclose(counts / 200, shares.numpy(), rtol=1e-5)
    cs.save(described[0], tmp_path / "lund.safetensors")
    read = read_description(as_file(tmp_path / "lund.description.safetensors"))
    np.testing.assert_allclose(read.class_counts, counts, rtol=1e-5)
    best = min(map(test_loss, nets.values()))
    for models, options in ((described, {}), (list(nets.values()), {"inputs": images[400:500]})):
        fusion = cs.fuse(models, FAST, **options)
        assert fusion.verdict.criterion == "disagreement with the sites' ensemble"
        assert test_loss(fusion.model) <= best + 0.02


def test_labels_of_maps_must_be_one_for_each_pixel():
    images, labels = pictures()
    with pytest.raises(InputError, match="expected one for each of 64 positions"):
        cs.describe(Maps(), (images[:100], labels[:100, :4]))


def test_several_heads_are_compared_each_by_its_own():
    rows, labels = wines()
    target = rows[:, 0] * rows[:, 3]

    def losses(net, chosen):
        answer = net(rows[chosen])
        number = functional.mse_loss(answer["number"], target[chosen])
        return functional.cross_entropy(answer["classes"], labels[chosen]), number

    nets = [trained(Heads(seed), lambda net, chosen: sum(losses(net, chosen)), 60) for seed in range(2)]
    fusion = cs.fuse(nets, FAST, inputs=rows[60:120])
    assert fusion.verdict.criterion.startswith("mean over the outputs")
    with torch.no_grad():
        worst = max(float(sum(losses(net, slice(120, None)))) for net in nets)
        assert float(sum(losses(fusion.model, slice(120, None)))) <= 1.1 * worst
    described = [cs.describe(net, (rows[:120], (labels[:120], target[:120]))) for net in nets]
    classes, number = described[0].description.output_labels
    assert (classes.name, classes.classes, classes.counts.tolist()) == (
        "classes",
        ("0", "1", "2"),
        np.bincount(labels[:120], minlength=3).tolist(),
    )
    with torch.no_grad():
        answer = nets[0](rows[:120])
    assert classes.own_loss == pytest.approx(
        float((answer["classes"].argmax(1) != labels[:120]).double().mean()), abs=5e-4
    )
    error = functional.mse_loss(answer["number"], target[:120]) / target[:120].var(correction=0)
    assert (number.name, number.classes, number.counts) == ("number", None, None)
    assert number.own_loss == pytest.approx(float(error), rel=5e-3)
    assert cs.fuse(described, FAST).verdict.criterion.startswith("mean over the outputs")


def test_the_output_that_is_meant_can_be_said(tmp_path):
    rows, labels = wines()
    nets = [Heads(seed) for seed in range(2)]
    described = [cs.describe(net, (rows, labels), output="classes") for net in nets]
    assert described[0].description.classes == ("0", "1", "2")
    assert not hasattr(nets[0], "_consilience_output")
    cs.save(described[0], tmp_path / "lund.safetensors")
    assert read_description(as_file(tmp_path / "lund.description.safetensors")).output == "classes"
    fusion = cs.fuse(described, FAST)
    assert fusion.verdict.criterion == "error on inputs drawn from the sites' class moments"
    assert set(fusion.model(rows[:2])) == {"classes", "number"}  # it returns what the networks return
    assert fusion.ensemble(rows[:2]).shape == (2, 3)
    given = cs.fuse(nets, FAST, inputs=rows, output="classes")
    assert given.verdict.criterion == "disagreement with the sites' ensemble"
    with pytest.raises(InputError, match="return no 'odds'; choose one of: classes, number"):
        cs.describe(nets[0], (rows, labels), output="odds")
    other = cs.describe(nets[1], (rows, rows[:, 0]), output="number")
    with pytest.raises(InputError, match="describes the output"):
        cs.fuse([described[0], other])

"""LoRA adapters are merged as products: the merged B A is the mean, or the sum, of the adapters' s B A."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import consilience as cs
from tests.checkpoints.some_adapters import CONFIG, PREFIX, SIZES, changes, factors, write_adapter
from tests.checkpoints.some_checkpoints import tensors, write

EXACT = 1e-6  # float32 factors, rounded once


def config_of(folder):
    return json.loads((Path(folder) / "adapter_config.json").read_text())


def assert_changes(output, expected, tolerance=EXACT):
    found = changes(output)
    assert found.keys() == expected.keys()
    for module, change in expected.items():
        assert (found[module] - change).norm() <= tolerance * change.norm(), module


def two(tmp_path, first=None, second=None, **kinds):
    """Return two adapters of different ranks, alphas and scales."""
    one = write_adapter(tmp_path / "a", factors(0, **kinds), **(first or {}))
    ranks = {"model.layers.0.q_proj": 2, "model.layers.0.up_proj": 6, "model.layers.1.q_proj": 6}
    other = {"r": 6, "lora_alpha": 3, "use_rslora": True, "rank_pattern": {"layers.0.q_proj": 2},
             "alpha_pattern": {"up_proj": 5}}  # fmt: skip
    return one, write_adapter(tmp_path / "b", factors(1, ranks, **kinds), **(second or other))


@pytest.mark.parametrize("weights", [None, [1.0, 3.0], [1.0, 0.0]])
def test_the_merged_product_is_the_weighted_mean_of_the_products(tmp_path, weights):
    models = two(tmp_path)
    done = cs.merge(models, tmp_path / "out", weights=weights)
    shares = [weight / sum(weights or [1, 1]) for weight in weights or [1, 1]]
    parts = [changes(model) for model in models]
    assert_changes(done.output, {module: sum(s * part[module] for s, part in zip(shares, parts, strict=True))
                                 for module in SIZES})  # fmt: skip


def test_averaging_the_factors_apart_is_another_matrix(tmp_path):
    """The control: what a merge tensor by tensor writes is far from the mean."""
    models = [write_adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")]
    first, second = (load_file(model / "adapter_model.safetensors") for model in models)
    apart = write_adapter(tmp_path / "apart", {name: (first[name] + second[name]) / 2 for name in first})
    mean = {module: (changes(models[0])[module] + changes(models[1])[module]) / 2 for module in SIZES}
    assert all((changes(apart)[module] - mean[module]).norm() > 0.3 * mean[module].norm() for module in SIZES)
    assert_changes(cs.merge(models, tmp_path / "out").output, mean)


def test_sums_and_negations_are_task_arithmetic_without_a_base(tmp_path):
    models = two(tmp_path)
    done = cs.merge(models, tmp_path / "out", "task_arithmetic", weights=[1.0, -0.5], scaling=2.0)
    a, b = map(changes, models)
    assert_changes(done.output, {module: 2.0 * (a[module] - 0.5 * b[module]) for module in SIZES})


def test_an_adapter_minus_itself_is_nothing(tmp_path):
    model = write_adapter(tmp_path / "a", factors(0))
    done = cs.merge([model, model], tmp_path / "out", "task_arithmetic", weights=[1, -1])
    size = min(change.norm() for change in changes(model).values())
    assert all(change.norm() < 1e-12 * size for change in changes(done.output).values())


def test_one_adapter_is_itself(tmp_path):
    model = two(tmp_path)[1]
    assert_changes(cs.merge([model], tmp_path / "out").output, changes(model))


def test_relabelling_the_ranks_of_an_adapter_changes_nothing(tmp_path):
    models = two(tmp_path)
    mixed = factors(0)
    mixing = torch.randn(4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    for module in SIZES:
        a, b = (f"{PREFIX}{module}.lora_{part}.weight" for part in "AB")
        mixed[a] = (mixing @ mixed[a].double()).float()
        mixed[b] = (mixed[b].double() @ mixing.inverse()).float()
    relabelled = write_adapter(tmp_path / "c", mixed)
    merged = changes(cs.merge(models, tmp_path / "out").output)
    assert_changes(cs.merge([relabelled, models[1]], tmp_path / "out2").output, merged, tolerance=1e-5)


def test_what_peft_reads_is_written(tmp_path):
    models = two(tmp_path)
    done = cs.merge(models, tmp_path / "out")
    assert {path.name for path in done.output.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "README.md", "merge.json", "tokenizer.json"}  # fmt: skip
    config = config_of(done.output)
    assert config["r"] == config["lora_alpha"] == 10
    assert config["rank_pattern"] == config["alpha_pattern"] == {"model.layers.0.q_proj": 6}
    assert not config["use_rslora"]
    assert config["target_modules"] == CONFIG["target_modules"]  # the modules are the same, so is their selection
    assert config["lora_dropout"] == CONFIG["lora_dropout"]
    stored = load_file(done.output / "adapter_model.safetensors")
    assert set(stored) == set(factors(0))
    assert all(tensor.dtype == torch.float32 for tensor in stored.values())
    assert done.digests.keys() == {"adapter_model.safetensors"}
    assert done.provenance["details"]["adapters"]["ranks"]["model.layers.1.q_proj"] == 10


def test_modules_that_one_adapter_lacks_have_fewer_ranks(tmp_path):
    first = write_adapter(tmp_path / "a", factors(0, modules=["model.layers.0.q_proj"]), layers_to_transform=[0],
                          target_modules=["q_proj"])  # fmt: skip
    second = write_adapter(tmp_path / "b", factors(1))
    done = cs.merge([first, second], tmp_path / "out")
    a, b = changes(first), changes(second)
    zero = dict.fromkeys(SIZES, 0.0)
    assert_changes(done.output, {module: ((zero | a)[module] + b[module]) / 2 for module in SIZES})
    config = config_of(done.output)
    assert config["target_modules"] == sorted(SIZES)
    assert config["layers_to_transform"] is None
    assert config["rank_pattern"] == {"model.layers.0.q_proj": 8}


def test_sixteen_bits_are_exact_where_scales_are_powers_of_two_and_else_said(tmp_path):
    models = [write_adapter(tmp_path / name, factors(seed, dtype=torch.bfloat16)) for seed, name in enumerate("ab")]
    done = cs.merge(models, tmp_path / "out")  # s = 2, weights of a half
    assert_changes(done.output, {m: (changes(models[0])[m] + changes(models[1])[m]) / 2 for m in SIZES}, 1e-15)
    assert not done.notes
    rounded = cs.merge(models, tmp_path / "out2", weights=[1, 2])
    expected = {m: (changes(models[0])[m] + 2 * changes(models[1])[m]) / 3 for m in SIZES}
    assert_changes(rounded.output, expected, 4e-3)
    stated = rounded.provenance["details"]["adapters"]["rounding"]
    for module, change in expected.items():
        error = (changes(rounded.output)[module] - change).norm() / change.norm()
        assert stated[module] == pytest.approx(float(error), rel=0.05)
    assert any("rounding changes the merged products" in note for note in rounded.notes)


def test_embeddings_and_convolutions_are_stacked_along_their_ranks(tmp_path):
    draw = torch.Generator().manual_seed(3)
    shapes = {"embed.lora_embedding_A": (4, 9), "embed.lora_embedding_B": (5, 4), "conv.lora_A.weight": (4, 3, 2, 2),
              "conv.lora_B.weight": (6, 4, 1, 1)}  # fmt: skip
    made = [
        {f"{PREFIX}{name}": torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        | {f"{PREFIX}embed.base_layer.weight": torch.ones(9, 5)}
        for _ in range(2)
    ]
    places = [tmp_path / "a", tmp_path / "b"]
    models = [write_adapter(at, one, target_modules=["embed", "conv"]) for at, one in zip(places, made, strict=True)]
    done = load_file(cs.merge(models, tmp_path / "out").output / "adapter_model.safetensors")

    def product(tensors, a, b):
        a, b = tensors[f"{PREFIX}{a}"].double().flatten(1), tensors[f"{PREFIX}{b}"].double().flatten(1)
        return b @ a

    for a, b in (("embed.lora_embedding_A", "embed.lora_embedding_B"), ("conv.lora_A.weight", "conv.lora_B.weight")):
        mean = 2.0 * (product(made[0], a, b) + product(made[1], a, b)) / 2  # s = alpha / r = 2
        assert torch.allclose(product(done, a, b), mean, atol=1e-5)
    assert done[f"{PREFIX}conv.lora_A.weight"].shape == (8, 3, 2, 2)
    assert torch.equal(done[f"{PREFIX}embed.base_layer.weight"], torch.ones(9, 5))  # the base's, and never averaged


def saved_heads(tmp_path):
    """Return adapters of which two have trained a head, and their base, whose head is all twos."""
    head = f"{PREFIX}lm_head.weight"
    first = write_adapter(tmp_path / "a", factors(0) | {head: torch.ones(3, 8)}, modules_to_save=["lm_head"])
    second = write_adapter(tmp_path / "b", factors(1) | {head: torch.zeros(3, 8)}, modules_to_save=["lm_head"])
    base = {f"{module}.weight": torch.ones(size) for module, size in SIZES.items()}
    base["lm_head.weight"] = torch.full((3, 8), 2.0)
    return [first, second, write_adapter(tmp_path / "c", factors(2))], write(tmp_path / "base", base), head


def test_modules_trained_as_a_whole_are_averaged(tmp_path):
    models, _, head = saved_heads(tmp_path)
    done = cs.merge(models[:2], tmp_path / "out", weights=[3, 1])
    assert torch.equal(load_file(done.output / "adapter_model.safetensors")[head], torch.full((3, 8), 0.75))
    assert config_of(done.output)["modules_to_save"] == ["lm_head"]
    for method, adapters in (("average", models), ("task_arithmetic", models[:2]), ("ties", models)):
        with pytest.raises(cs.errors.InputError, match="trained as a whole, and their changes need the base"):
            cs.merge(adapters, tmp_path / "no", method)


def test_with_a_base_a_module_that_an_adapter_lacks_is_the_bases(tmp_path):
    models, base, head = saved_heads(tmp_path)
    for method, expected in (("average", (3 * 1 + 0 + 4 * 2) / 8), ("task_arithmetic", 2 - 3 * 1 - 1 * 2)):
        done = cs.merge(models, tmp_path / method, method, weights=[3, 1, 4], base=base)
        assert torch.equal(load_file(done.output / "adapter_model.safetensors")[head], torch.full((3, 8), expected))
        assert any("lm_head.weight is not in" in note for note in done.notes)
    other = write(tmp_path / "other", {f"{module}.weight": torch.ones(size) for module, size in SIZES.items()})
    with pytest.raises(cs.errors.InputError, match=r"has lm_head.weight of shape \[3, 8\]"):
        cs.merge(models, tmp_path / "no", base=other)
    wide = write(tmp_path / "wide", {f"{module}.weight": torch.ones(7, 5) for module in SIZES})
    with pytest.raises(cs.errors.InputError, match=r"q_proj is 12 by 8, in .*wide"):
        cs.merge(models, tmp_path / "no", base=wide)


@pytest.mark.parametrize("rank", [1, 3, 8, 40])
def test_a_lower_rank_is_the_nearest_product_and_its_error_is_told(tmp_path, rank):
    models = two(tmp_path)
    done = cs.merge(models, tmp_path / "out", rank=rank)
    mean = {module: (changes(models[0])[module] + changes(models[1])[module]) / 2 for module in SIZES}
    found, told = changes(done.output), done.provenance["details"]["adapters"]
    for module, exact in mean.items():
        tail = torch.linalg.svdvals(exact)[rank:].norm() / exact.norm()
        assert (found[module] - exact).norm() / exact.norm() == pytest.approx(float(tail), abs=1e-6)
        assert told["rank and rounding"][module] == pytest.approx(float(tail), rel=0.06, abs=1e-6)
    assert any("of their size" in note for note in done.notes) == (rank < 8)
    factor = load_file(done.output / "adapter_model.safetensors")[f"{PREFIX}{next(iter(SIZES))}.lora_A.weight"]
    assert len(factor) == min(rank, 4 + 2)


@pytest.mark.parametrize("share", [0.3, 0.8, 0.99, 1 - 1e-13])
@pytest.mark.parametrize("method", ["average", "ties"])
def test_a_share_of_energy_gives_every_module_the_smallest_rank_that_keeps_it(tmp_path, share, method):
    models = two(tmp_path)
    options = {"density": 0.7} if method == "ties" else {}
    whole = changes(cs.merge(models, tmp_path / "whole", method, rank=99, dtype="float64", **options).output)
    done = cs.merge(models, tmp_path / "out", method, rank=share, dtype="float64", **options)
    ranks = done.provenance["details"]["adapters"]["ranks"]
    stated = done.provenance["details"]["adapters"]["rank and rounding"]
    for module, found in changes(done.output).items():
        energies = torch.linalg.svdvals(whole[module]).square()
        rank = ranks[module]
        assert energies[:rank].sum() >= share * energies.sum() * (1 - 1e-14)
        assert rank == 1 or energies[: rank - 1].sum() < share * energies.sum()
        tail = float(energies[rank:].sum().sqrt() / energies.sum().sqrt())
        assert float((found - whole[module]).norm() / whole[module].norm()) == pytest.approx(tail, abs=1e-7)
        assert stated[module] == pytest.approx(tail, rel=0.06, abs=1e-7)
        assert stated[module] ** 2 <= (1 - share) * 1.1 + 1e-13
    assert {shard.nbytes for shard in done.plan.shards} == {(done.output / "adapter_model.safetensors").stat().st_size}


def test_a_dry_run_of_a_share_has_the_highest_ranks(tmp_path):
    models = two(tmp_path)
    planned = cs.merge(models, tmp_path / "out", rank=0.5, dry_run=True)
    assert planned.bytes > cs.merge(models, tmp_path / "out", rank=0.5).bytes


@pytest.mark.parametrize("rank", [0, -1, 1.0, 1.5, 0.0, -0.5, float("nan"), True, "4"])
def test_what_is_neither_a_rank_nor_a_share_is_refused(tmp_path, rank):
    with pytest.raises(cs.errors.OptionError, match="rank: expected a positive integer, or a share of the energy"):
        cs.merge(two(tmp_path), tmp_path / "out", rank=rank)


@pytest.mark.parametrize(
    ("method", "options"),
    [("ties", {"density": 0.4}), ("dare", {"density": 0.5}), ("breadcrumbs", {"density": 0.6}), ("tsv_m", {}),
     ("knots", {}), ("wudi", {}), ("slerp", {"t": 0.3}), ("multislerp", {}), ("model_stock", {}), ("sce", {})],
)  # fmt: skip
def test_methods_that_look_at_entries_look_at_those_of_the_products(tmp_path, method, options):
    """The merge is that of checkpoints whose base is zero, written in factors of the highest rank."""
    models = two(tmp_path)
    done = cs.merge(models, tmp_path / "out", method, rank=99, **options)
    zero = write(tmp_path / "zero", {f"{module}.weight": torch.zeros(size) for module, size in SIZES.items()})
    whole = []
    for model in models:
        state = {f"{module}.weight": change for module, change in changes(model).items()}
        whole.append(write(tmp_path / f"{model.name} whole", state))
    base = {} if method == "slerp" else {"base": zero}
    expected = load_file(cs.merge(whole, tmp_path / "as", method, **base, **options).output / "model.safetensors")
    found = changes(done.output)
    for module in SIZES:
        torch.testing.assert_close(found[module], expected[f"{module}.weight"].double(), atol=2e-5, rtol=1e-5)


def test_weights_that_cancel_have_an_election_of_signs(tmp_path):
    models = two(tmp_path)
    done = cs.merge(models, tmp_path / "out", "ties", weights=[1, -1], density=1.0, rank=99)
    a, b = map(changes, models)
    for module, found in changes(done.output).items():
        terms = torch.stack([a[module], -b[module]])
        agrees = terms.sign() == terms.sum(0).sign()
        torch.testing.assert_close(found, (terms * agrees).sum(0) / agrees.sum(0).clamp(min=1), atol=2e-5, rtol=1e-5)


def test_the_record_says_how_far_products_go(tmp_path):
    models = two(tmp_path)
    for method, options in (("task_arithmetic", {}), ("ties", {"density": 1.0})):
        done = cs.merge(models, tmp_path / method, method, **options)
        told = done.provenance["details"]["changes"]
        a, b, merged = (torch.cat([one.flatten() for one in changes(path).values()]) for path in (*models, done.output))
        assert told["models"] == pytest.approx({"a": float(a.norm()), "b": float(b.norm())}, rel=1e-3)
        assert told["cosine"] == pytest.approx(float(a @ b / (a.norm() * b.norm())), abs=1e-3)
        if method == "task_arithmetic":
            assert told["ratio"] == pytest.approx(float(merged.norm() / max(a.norm(), b.norm())), rel=1e-3)
            assert any("most fine-tunes merged so far were worse" in note for note in done.notes) == (told["ratio"] > 1)


BIASES = {
    "lora_only": [f"{PREFIX}{module}.base_layer.bias" for module in SIZES],
    "all": [*(f"{PREFIX}{module}.base_layer.bias" for module in SIZES), f"{PREFIX}model.norm.bias"],
}
"""Names under which peft saves biases that it trained, by the setting `bias` (`_get_learnable_bias_state_dict`)."""


def with_biases(seed, setting, dtype=torch.float32):
    draw = torch.Generator().manual_seed(100 + seed)
    return factors(seed) | {name: torch.randn(12, generator=draw).to(dtype) for name in BIASES[setting]}


@pytest.mark.parametrize("weights", [None, [3, 1], [1, 0]])
@pytest.mark.parametrize("setting", BIASES)
def test_biases_that_peft_trained_are_averaged_as_modules_trained_as_a_whole(tmp_path, setting, weights):
    made = [with_biases(seed, setting) for seed in range(2)]
    models = [write_adapter(tmp_path / name, one, bias=setting) for name, one in zip("ab", made, strict=True)]
    done = cs.merge(models, tmp_path / "out", weights=weights)
    stored = load_file(done.output / "adapter_model.safetensors")
    shares = [weight / sum(weights or [1, 1]) for weight in weights or [1, 1]]
    for name in BIASES[setting]:
        torch.testing.assert_close(stored[name], shares[0] * made[0][name] + shares[1] * made[1][name])
    assert config_of(done.output)["bias"] == setting
    assert not done.notes
    with pytest.raises(cs.errors.InputError, match="trained as a whole, and their changes need the base"):
        cs.merge(models, tmp_path / "sum", "task_arithmetic")


@pytest.mark.parametrize(("first", "second"), [("all", "none"), ("none", "lora_only"), ("all", "lora_only")])
def test_adapters_that_trained_other_biases_are_refused_in_one_line_with_the_reason(tmp_path, first, second):
    models = [
        write_adapter(tmp_path / name, with_biases(seed, setting) if setting in BIASES else factors(seed), bias=setting)
        for seed, (name, setting) in enumerate((("a", first), ("b", second)))
    ]
    with pytest.raises(
        cs.errors.InputError, match=f"b: bias is '{second}', in .*a '{first}': trained biases"
    ) as refused:
        cs.merge(models, tmp_path / "out")
    assert len(refused.value.problems) == 1


def test_a_configuration_without_bias_trains_none(tmp_path):
    models = [write_adapter(tmp_path / "a", factors(0), bias=None), write_adapter(tmp_path / "b", factors(1))]
    assert cs.merge(models, tmp_path / "out").digests


def test_a_bias_of_the_base_that_was_not_trained_must_be_the_same(tmp_path):
    bias = BIASES["lora_only"][0]
    models = [write_adapter(tmp_path / name, factors(seed) | {bias: torch.full((12,), float(seed))})
              for seed, name in enumerate("ab")]  # fmt: skip
    with pytest.raises(cs.errors.InputError, match=r"base_layer\.bias is another than in .*a, so the bases differ"):
        cs.merge(models, tmp_path / "out")


def with_factor_biases(seed, modules=SIZES):
    draw = torch.Generator().manual_seed(200 + seed)
    return factors(seed, modules=modules) | {
        f"{PREFIX}{module}.lora_B.bias": torch.randn(SIZES[module][0], generator=draw) for module in modules
    }


def factor_biases(folder):
    """Return s b by module, what an adapter adds to the answers of each."""
    config, stored = config_of(folder), load_file(Path(folder) / "adapter_model.safetensors")
    assert all(parts <= set(stored) for parts in ({f"{PREFIX}{module}.lora_A.weight"} for module in SIZES))
    scale = config["lora_alpha"] / config["r"]
    biases = {module: stored.get(f"{PREFIX}{module}.lora_B.bias") for module in SIZES}
    return {module: 0.0 if bias is None else scale * bias for module, bias in biases.items()}


@pytest.mark.parametrize("second", ["all modules", "some modules", "none"])
def test_biases_of_the_factors_are_averaged_with_their_scales_and_count_as_zero_where_there_are_none(tmp_path, second):
    one = write_adapter(tmp_path / "a", with_factor_biases(0), lora_bias=True, lora_alpha=2)
    made = {"all modules": with_factor_biases(1), "none": factors(1),
            "some modules": factors(1) | with_factor_biases(1, list(SIZES)[:1])}[second]  # fmt: skip
    two = write_adapter(tmp_path / "b", made, lora_bias=second != "none")
    done = cs.merge([two, one] if second == "none" else [one, two], tmp_path / "out")
    merged, a, b = map(factor_biases, (done.output, one, two))
    for module in SIZES:
        torch.testing.assert_close(merged[module], (a[module] + b[module]) / 2)
    assert config_of(done.output)["lora_bias"] is True


def test_a_bias_of_a_factor_that_has_another_shape_is_named(tmp_path):
    short = with_factor_biases(0) | {f"{PREFIX}model.layers.0.q_proj.lora_B.bias": torch.zeros(5)}
    models = [write_adapter(tmp_path / name, one, lora_bias=True) for name, one in (("a", short), ("b", factors(1)))]
    with pytest.raises(
        cs.errors.InputError, match=r"a: model\.layers\.0\.q_proj has a bias \[5\] of factor B, expected \[12\]"
    ):
        cs.merge(models, tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_type": "IA3"}, "is an adapter of type 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "sets use_dora .*DoRA normalises"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which changed the base too"),
        ({"layer_replication": [[0, 2]]}, "sets layer_replication"),
        ({"trainable_token_indices": [3]}, "sets trainable_token_indices"),
        ({"use_bdlora": {"a": 1}}, "sets use_bdlora .*which stacking ranks does not know"),
        ({"base_model_name_or_path": "org/other"}, "base_model_name_or_path is 'org/other', in .*a 'org/base'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True, in .*a None"),
        ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS', in .*a 'CAUSAL_LM'"),
        ({"r": 3}, r"has factors \[4, 8\] and \[12, 4\], expected rank 3"),
        ({"r": "four"}, "its r must be a positive number, found 'four'"),
        ({"lora_alpha": float("nan")}, "its lora_alpha must be a positive number"),
        ({"rank_pattern": {"q_proj": -1}}, "its rank_pattern must give positive numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_stacked_is_refused_by_name(tmp_path, changed, message):
    models = [write_adapter(tmp_path / "a", factors(0)), write_adapter(tmp_path / "b", factors(1), **changed)]
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge(models, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_adapters_of_bases_by_other_names_are_merged_where_that_is_allowed(tmp_path):
    models = [write_adapter(tmp_path / "a", factors(0)),
              write_adapter(tmp_path / "b", factors(1), base_model_name_or_path="/home/me/base")]  # fmt: skip
    done = cs.merge(models, tmp_path / "out", allow_differences=True)
    assert any("'/home/me/base', in" in note for note in done.notes)


def test_shapes_parts_and_values_that_do_not_fit_are_named(tmp_path):
    wide = factors(0)
    wide[f"{PREFIX}model.layers.0.q_proj.lora_A.weight"] = torch.zeros(4, 9)
    half = factors(0)
    del half[f"{PREFIX}model.layers.0.q_proj.lora_B.weight"]
    magnitudes = factors(0) | {f"{PREFIX}model.layers.0.q_proj.lora_magnitude_vector": torch.ones(12)}
    infinite = factors(0)
    infinite[f"{PREFIX}model.layers.0.q_proj.lora_A.weight"][0, 0] = float("inf")
    good = write_adapter(tmp_path / "good", factors(1))
    for name, made, message in (
        ("wide", wide, r"q_proj has outputs and inputs \[12, 8.*\], in .*wide \[12, 9"),
        ("half", half, "q_proj has lora_A.weight alone, expected both factors"),
        ("magnitudes", magnitudes, "lora_magnitude_vector: no factors A and B"),
        ("infinite", infinite, "lora_A.weight has NaN or infinite values"),
        ("none", {"x": torch.ones(1)}, "has no factors lora_A and lora_B"),
    ):
        with pytest.raises(cs.errors.InputError, match=message):
            cs.merge([write_adapter(tmp_path / name, made), good], tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_bases_that_differ_in_what_adapters_store_of_them_are_refused(tmp_path):
    base = f"{PREFIX}embed.base_layer.weight"
    models = [write_adapter(tmp_path / name, factors(seed) | {base: torch.full((3, 2), float(seed))})
              for seed, name in enumerate("ab")]  # fmt: skip
    with pytest.raises(cs.errors.InputError, match=r"base_layer\.weight is another than in .*a, so the bases differ"):
        cs.merge(models, tmp_path / "out")


@pytest.mark.parametrize("method", ["regmean", "fisher", "passthrough", "arcee_fusion"])
def test_methods_that_look_at_more_than_changes_are_refused(tmp_path, method):
    with pytest.raises(cs.errors.OptionError, match="looks at more than what adapters change"):
        cs.merge(two(tmp_path), tmp_path / "out", method)


def test_a_rank_of_whole_models_is_refused(tmp_path):
    models = [write(tmp_path / name, tensors(seed)) for seed, name in enumerate("ab")]
    with pytest.raises(cs.errors.OptionError, match="these are whole models"):
        cs.merge(models, tmp_path / "out", rank=4)


def test_options_of_whole_models_are_refused(tmp_path):
    models = two(tmp_path)
    with pytest.raises(cs.errors.OptionError, match="patterns: is for whole models"):
        cs.merge(models, tmp_path / "out", patterns=[{"pattern": "*", "weights": [1, 2]}])
    with pytest.raises(cs.errors.OptionError, match="an adapter is a folder"):
        cs.merge(models, tmp_path / "out.safetensors")
    with pytest.raises(cs.errors.OptionError, match="sum to 0"):
        cs.merge(models, tmp_path / "out", weights=[1, -1])


def test_an_adapter_beside_a_whole_model_is_refused(tmp_path):
    adapter = write_adapter(tmp_path / "a", factors(0))
    model = write(tmp_path / "m", tensors(0))
    with pytest.raises(
        cs.errors.InputError,
        match=r"is an adapter, and .*m is none; merge checkpoints with their adapters in place, as BASE",
    ):
        cs.merge([model, adapter], tmp_path / "out")


def test_folders_that_are_half_an_adapter_are_refused(tmp_path):
    whole = write_adapter(tmp_path / "a", factors(0))
    for name, removed, message in (("b", "adapter_model.safetensors", "and no adapter_model.safetensors"),
                                   ("c", "adapter_config.json", "and no adapter_config.json")):  # fmt: skip
        half = write_adapter(tmp_path / name, factors(1))
        (half / removed).unlink()
        with pytest.raises(cs.errors.InputError, match=message):
            cs.merge([whole, half], tmp_path / "out")
    (tmp_path / "b" / "adapter_model.bin").write_bytes(b"\x80")
    with pytest.raises(cs.errors.InputError, match="only a pickle"):
        cs.merge([whole, tmp_path / "b"], tmp_path / "out")


def test_a_dry_run_says_what_would_be_written(tmp_path):
    done = cs.merge(two(tmp_path), tmp_path / "out", dry_run=True)
    assert not done.output.exists()
    (shard,) = done.plan.shards
    assert shard.name == "adapter_model.safetensors"
    written = cs.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert (written.output / shard.name).stat().st_size == done.bytes


def test_the_same_adapters_give_the_same_bytes(tmp_path):
    models = two(tmp_path)
    outputs = [cs.merge(models, tmp_path / name, weights=[1, 2]).output for name in ("one", "other")]
    one, other = ({path.name: path.read_bytes() for path in output.iterdir()} for output in outputs)
    assert one == other

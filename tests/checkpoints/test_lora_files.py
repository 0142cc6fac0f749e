"""LoRA files of kohya's trainer, LyCORIS and diffusers are merged as products, written as loaders read them."""

import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import consilience as cs
from consilience.checkpoints.lora.names import flat_names
from tests.checkpoints.some_adapters import write_adapter
from tests.checkpoints.some_checkpoints import write

EXACT = 1e-6  # float32 factors, rounded once

UNET = {
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (12, 8),
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0": (8, 12),
    "down_blocks.0.attentions.0.proj_in": (8, 6, 1, 1),
    "mid_block.resnets.0.conv1": (6, 4, 3, 3),
}
TEXT = {"text_model.encoder.layers.0.self_attn.q_proj": (10, 10), "text_model.encoder.layers.0.mlp.fc1": (14, 10)}
"""Shapes of the weights of a small Stable Diffusion, by module."""


def factors(seed, shape, rank):
    """Return A and B of a module, of a convolution with its kernel."""
    draw = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, *shape[1:], generator=draw)
    return a, torch.randn(shape[0], rank, *[1] * (len(shape) - 2), generator=draw)


def seeds(seed):
    return {
        name: 100 * seed + number for number, name in enumerate([*UNET, *(f"text_encoder.{name}" for name in TEXT)])
    }


def parts_of(seed, ranks=(4, 2, 3, 4), text=True):
    """Yield component, module, A, B and rank of an adapter's modules."""
    numbers = seeds(seed)
    for (module, shape), rank in zip(UNET.items(), ranks, strict=True):
        yield "unet", module, *factors(numbers[module], shape, rank)
    for module, shape in TEXT.items() if text else ():
        yield "text_encoder", module, *factors(numbers[f"text_encoder.{module}"], shape, 2)


def kohya(path, seed, alpha=3.0, te="lora_te", dtype=torch.float32, metadata=None, **kinds):
    """Write an adapter as kohya's trainer does."""
    tensors = {}
    for component, module, a, b in parts_of(seed, **kinds):
        name = f"{'lora_unet' if component == 'unet' else te}_{module.replace('.', '_')}"
        tensors |= {f"{name}.lora_down.weight": a.to(dtype), f"{name}.lora_up.weight": b.to(dtype)}
        if alpha is not None:
            tensors[f"{name}.alpha"] = torch.tensor(alpha, dtype=dtype)
    save_file(tensors, path, metadata)
    return path


STYLES = {
    "today": ("{}.lora_A.weight", "{}.lora_B.weight"),
    "old": ("{}.lora.down.weight", "{}.lora.up.weight"),
}


def diffusers(path, seed, style="today", alphas=None, metadata=None, **kinds):
    """Write an adapter as diffusers does."""
    tensors = {}
    for component, module, a, b in parts_of(seed, **kinds):
        name = f"{component}.{module}"
        if style == "processor" and (component == "text_encoder" or "attn" in module):
            if component == "unet":
                stem, last = module.removesuffix(".0").rsplit(".", 1)
                down, up = (f"{component}.{stem}.processor.{last}_lora.{way}.weight" for way in ("down", "up"))
            else:
                down, up = (f"{component}.{module}.lora_linear_layer.{way}.weight" for way in ("down", "up"))
        else:
            down, up = (one.format(name) for one in STYLES["old" if style == "processor" else style])
        tensors |= {down: a, up: b}
        if alphas is not None:
            tensors[f"{name}.alpha"] = torch.tensor(float(alphas))
    save_file(tensors, path, metadata)
    return path


def expected(seed, alpha=None, **kinds):
    """Return the change of every module, by its name without dots, for comparison."""
    found = {}
    for component, module, a, b in parts_of(seed, **kinds):
        scale = 1.0 if alpha is None else alpha / len(a)
        product = torch.einsum("or,r...->o...", b.double().flatten(1), a.double())
        found[component, module.replace(".", "_")] = scale * product
    return found


def changes_of_kohya(path):
    """Return what a file of kohya's changes: alpha / r of up and down, by component and name without dots."""
    tensors, found = load_file(path), {}
    for name in (name for name in tensors if name.endswith(".lora_down.weight")):
        module = name.removesuffix(".lora_down.weight")
        down, up = tensors[name].double(), tensors[f"{module}.lora_up.weight"].double()
        scale = float(tensors[f"{module}.alpha"]) / len(down)
        component = "unet" if module.startswith("lora_unet_") else "text_encoder"
        key = re.sub(r"^lora_(unet|te1?)_", "", module)
        found[component, key] = scale * torch.einsum("or,r...->o...", up.flatten(1), down)
    return found


def changes_of_diffusers(path):
    """Return what a file of diffusers changes, as its loader reads it: alpha is r without metadata or tensor."""
    tensors, found = load_file(path), {}
    with safe_open(path, "pt") as opened:
        metadata = json.loads((opened.metadata() or {}).get("lora_adapter_metadata", "{}"))
    for name in (name for name in tensors if name.endswith(".lora_A.weight")):
        whole = name.removesuffix(".lora_A.weight")
        component, _, module = whole.partition(".")
        a, b = tensors[name].double(), tensors[f"{whole}.lora_B.weight"].double()
        scale = float(tensors[f"{whole}.alpha"]) / len(a) if f"{whole}.alpha" in tensors else 1.0
        if metadata:
            patterns = metadata[f"{component}.alpha_pattern"]
            scale = patterns.get(module, metadata[f"{component}.lora_alpha"]) / len(a)
            assert metadata[f"{component}.rank_pattern"].get(module, metadata[f"{component}.r"]) == len(a)
        found[component, module.replace(".", "_")] = scale * torch.einsum("or,r...->o...", b.flatten(1), a)
    return found


def mean(parts, shares=None):
    shares = shares or [1 / len(parts)] * len(parts)
    keys = dict.fromkeys(key for part in parts for key in part)
    return {
        key: sum(share * part[key] for share, part in zip(shares, parts, strict=True) if key in part) for key in keys
    }


def assert_same(found, wanted, tolerance=EXACT):
    assert found.keys() == wanted.keys()
    for key, change in wanted.items():
        assert found[key].shape == change.shape, key
        assert (found[key] - change).norm() <= tolerance * change.norm(), key


@pytest.mark.parametrize("weights", [None, [1.0, 3.0], [1.0, 0.0]])
def test_files_of_kohya_are_merged_with_their_alphas(tmp_path, weights):
    one, two = (
        kohya(tmp_path / "a.safetensors", 0),
        kohya(tmp_path / "b.safetensors", 1, alpha=None, ranks=(1, 5, 2, 3)),
    )
    done = cs.merge([one, two], tmp_path / "out.safetensors", weights=weights)
    shares = [weight / sum(weights or [1, 1]) for weight in weights or [1, 1]]
    wanted = mean([expected(0, 3.0), expected(1, None, ranks=(1, 5, 2, 3))], shares)
    assert_same(changes_of_kohya(done.output), wanted)
    assert (tmp_path / "out.merge.json").is_file()


def test_all_modules_of_kohya_have_one_alpha(tmp_path):
    """Loaders that do not find a module's name again take the most common alpha for it."""
    models = [kohya(tmp_path / f"{seed}.safetensors", seed) for seed in range(2)]
    stored = load_file(cs.merge(models, tmp_path / "out.safetensors").output)
    assert len({len(value) for name, value in stored.items() if name.endswith("down.weight")}) > 1
    assert len({float(value) for name, value in stored.items() if name.endswith("alpha")}) == 1


@pytest.mark.parametrize("style", ["today", "old", "processor"])
@pytest.mark.parametrize("alphas", [None, 6.0])
def test_files_of_diffusers_are_merged_in_all_their_spellings(tmp_path, style, alphas):
    one = diffusers(tmp_path / "a.safetensors", 0, style, alphas)
    two = diffusers(tmp_path / "b.safetensors", 1, "today", alphas)
    done = cs.merge([one, two], tmp_path / "out.safetensors")
    assert_same(changes_of_diffusers(done.output), mean([expected(0, alphas), expected(1, alphas)]))
    assert any(name.endswith(".alpha") for name in load_file(done.output)) == (alphas is not None)


def config_in_metadata(ranks=(4, 2, 3, 4), **fields):
    names = dict(zip(UNET, ranks, strict=True))
    config = {"unet.r": 4, "unet.lora_alpha": 6, "unet.rank_pattern": names, "unet.alpha_pattern": {"conv1": 5},
              "text_encoder.r": 2, "text_encoder.lora_alpha": 8, "text_encoder.use_rslora": True, **fields}  # fmt: skip
    return {"lora_adapter_metadata": json.dumps(config)}


def test_scales_in_the_metadata_of_diffusers_are_read_and_written(tmp_path):
    one = diffusers(tmp_path / "a.safetensors", 0, metadata=config_in_metadata())
    done = cs.merge([one, diffusers(tmp_path / "b.safetensors", 1)], tmp_path / "out")
    first = expected(0)
    for key, change in first.items():
        alpha = 5 if key[1].endswith("conv1") else 6
        ranks = {module.replace(".", "_"): r for module, r in zip(UNET, (4, 2, 3, 4), strict=True)}
        change *= 8 / 2**0.5 if key[0] == "text_encoder" else alpha / ranks[key[1]]
    assert {path.name for path in done.output.iterdir()} == {
        "pytorch_lora_weights.safetensors", "README.md", "merge.json"}  # fmt: skip
    assert_same(changes_of_diffusers(done.output / "pytorch_lora_weights.safetensors"), mean([first, expected(1)]))
    again = cs.merge([done.output], tmp_path / "again")  # a folder with such a file is read
    assert_same(changes_of_diffusers(again.output / "pytorch_lora_weights.safetensors"), mean([first, expected(1)]))


def test_a_sum_with_a_negative_weight_and_a_lower_rank(tmp_path):
    models = [kohya(tmp_path / f"{seed}.safetensors", seed, ranks=(4, 4, 4, 4)) for seed in range(2)]
    a, b = (expected(seed, 3.0, ranks=(4, 4, 4, 4)) for seed in range(2))
    options = {"weights": [1.0, -0.5], "scaling": 2.0}
    done = cs.merge(models, tmp_path / "sum.safetensors", "task_arithmetic", **options)
    wanted = {key: 2.0 * (a[key] - 0.5 * b[key]) for key in a}
    assert_same(changes_of_kohya(done.output), wanted)
    small = cs.merge(models, tmp_path / "small.safetensors", "task_arithmetic", rank=2, **options)
    for key, found in changes_of_kohya(small.output).items():
        tail = torch.linalg.svdvals(wanted[key].flatten(1))[2:].norm()
        assert float((found - wanted[key]).norm()) == pytest.approx(float(tail), abs=1e-5)


def test_methods_that_look_at_entries_look_at_those_of_the_products(tmp_path):
    models = [kohya(tmp_path / f"{seed}.safetensors", seed) for seed in range(2)]
    done = cs.merge(models, tmp_path / "out.safetensors", "ties", density=1.0, rank=99)
    a, b = (expected(seed, 3.0) for seed in range(2))
    for key, found in changes_of_kohya(done.output).items():
        terms = torch.stack([a[key], b[key]])
        agrees = terms.sign() == terms.sum(0).sign()
        torch.testing.assert_close(found, (terms * agrees).sum(0) / agrees.sum(0), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("order", [("kohya", "diffusers"), ("diffusers", "kohya")])
def test_files_of_two_conventions_are_matched_by_names_without_dots(tmp_path, order):
    makers = {"kohya": lambda path: kohya(path, 0, te="lora_te1"), "diffusers": lambda path: diffusers(path, 1)}
    models = [makers[kind](tmp_path / f"{kind}.safetensors") for kind in order]
    done = cs.merge(models, tmp_path / "out.safetensors")
    read = {"kohya": changes_of_kohya, "diffusers": changes_of_diffusers}[order[0]]
    assert_same(read(done.output), mean([expected(0, 3.0), expected(1)]))


def peft_adapter(folder, seed, modules=tuple(UNET), **config):
    """Write the U-Net of an adapter as peft does."""
    tensors = {}
    for component, module, a, b in parts_of(seed, ranks=(4, 4, 4, 4), text=False):
        if component == "unet" and module in modules:
            tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
    return write_adapter(folder, tensors, lora_alpha=4, target_modules=list(modules), **config)


@pytest.mark.parametrize("first", ["peft", "kohya", "diffusers"])
def test_a_folder_of_peft_is_matched_with_the_only_component_of_a_file(tmp_path, first):
    folder = peft_adapter(tmp_path / "peft", 0, base_model_name_or_path=None)
    make = diffusers if first == "diffusers" else kohya
    file = make(tmp_path / "file.safetensors", 1, text=False)
    wanted = mean([expected(0, text=False, ranks=(4, 4, 4, 4)),
                   expected(1, None if make is diffusers else 3.0, text=False)])  # fmt: skip
    if first == "peft":
        done = cs.merge([folder, file], tmp_path / "out")
        config = json.loads((done.output / "adapter_config.json").read_text())
        stored, found = load_file(done.output / "adapter_model.safetensors"), {}
        for module in UNET:
            a, b = (stored[f"base_model.model.{module}.lora_{part}.weight"].double() for part in "AB")
            assert config["rank_pattern"].get(module, config["r"]) == len(a)
            found["unet", module.replace(".", "_")] = torch.einsum("or,r...->o...", b.flatten(1), a)
    else:
        done = cs.merge([file, folder], tmp_path / "out.safetensors")
        found = (changes_of_diffusers if make is diffusers else changes_of_kohya)(done.output)
    assert_same(found, wanted)


BLOCKS_OF_SDXL = {
    "input_blocks_4_1_transformer_blocks_0_attn1_to_q": "down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q",
    "input_blocks_8_1_proj_in": "down_blocks_2_attentions_1_proj_in",
    "input_blocks_3_0_op": "down_blocks_0_downsamplers_0_conv",
    "input_blocks_2_0_in_layers_2": "down_blocks_0_resnets_1_conv1",
    "middle_block_1_proj_out": "mid_block_attentions_0_proj_out",
    "middle_block_2_out_layers_3": "mid_block_resnets_1_conv2",
    "output_blocks_5_1_proj_in": "up_blocks_1_attentions_2_proj_in",
    "output_blocks_2_2_conv": "up_blocks_0_upsamplers_0_conv",
    "output_blocks_6_0_skip_connection": "up_blocks_2_resnets_0_conv_shortcut",
    "output_blocks_0_0_emb_layers_1": "up_blocks_0_resnets_0_time_emb_proj",
    "label_emb_0_2": "add_embedding_linear_2", "input_blocks_0_0": "conv_in", "out_2": "conv_out",
}  # fmt: skip
"""Modules of SDXL as its own code counts them, and as diffusers does (`_maybe_map_sgm_blocks_to_diffusers`)."""


def test_blocks_of_sdxl_are_known_under_both_their_names(tmp_path):
    assert {name: flat_names("kohya", f"lora_unet_{name}")[-1] for name in BLOCKS_OF_SDXL} == BLOCKS_OF_SDXL
    paths = []
    for number, names in enumerate((BLOCKS_OF_SDXL, BLOCKS_OF_SDXL.values())):
        tensors = {}
        for place, name in enumerate(names):
            a, b = factors(50 * number + place, (6, 5), 2)
            tensors |= {f"lora_unet_{name}.lora_down.weight": a, f"lora_unet_{name}.lora_up.weight": b}
        paths.append(tmp_path / f"{number}.safetensors")
        save_file(tensors, paths[-1])
    stored = load_file(cs.merge(paths, tmp_path / "out.safetensors").output)
    assert {name.partition(".")[0] for name in stored} == {f"lora_unet_{name}" for name in BLOCKS_OF_SDXL}
    for place, name in enumerate(BLOCKS_OF_SDXL):
        down, up = (stored[f"lora_unet_{name}.lora_{way}.weight"].double() for way in ("down", "up"))
        wanted = sum(b.double() @ a.double() for a, b in (factors(50 * n + place, (6, 5), 2) for n in range(2))) / 2
        torch.testing.assert_close(up @ down, wanted, atol=1e-6, rtol=1e-6)


def base(folder, modules=UNET, prefix="", seed=9):
    draw = torch.Generator().manual_seed(seed)
    state = {f"{prefix}{module}.weight": torch.randn(shape, generator=draw) for module, shape in modules.items()}
    return write(folder, state | {f"{prefix}other.bias": torch.ones(3)})


@pytest.mark.parametrize("make", [kohya, diffusers])
@pytest.mark.parametrize("component", ["unet", "text_encoder"])
def test_a_file_goes_into_the_component_that_the_base_is(tmp_path, make, component):
    modules = UNET if component == "unet" else TEXT
    start = base(tmp_path / "base", modules)
    file = make(tmp_path / "a.safetensors", 0)
    done = cs.merge([f"{start}+{file}"], tmp_path / "out")
    before, after = (load_file(path / "model.safetensors") for path in (start, done.output))
    wanted = expected(0, 3.0 if make is kohya else None)
    for module in modules:
        change = after[f"{module}.weight"].double() - before[f"{module}.weight"].double()
        torch.testing.assert_close(change, wanted[component, module.replace(".", "_")], atol=1e-5, rtol=1e-5)
    (note,) = [note for note in done.notes if "of which the base has none" in note]
    assert ("text_encoder: 2" if component == "unet" else "unet: 4") in note


def test_a_file_goes_into_a_whole_pipeline_and_two_are_merged_there(tmp_path):
    draw = torch.Generator().manual_seed(3)
    state = {
        f"model.diffusion_model.{module}.weight": torch.randn(shape, generator=draw) for module, shape in UNET.items()
    }
    state |= {f"cond_stage_model.{module}.weight": torch.randn(shape, generator=draw) for module, shape in TEXT.items()}
    start = write(tmp_path / "base", state)
    files = [kohya(tmp_path / f"{seed}.safetensors", seed) for seed in range(2)]
    done = cs.merge([f"{start}+{file}" for file in files], tmp_path / "out")
    after, wanted = load_file(done.output / "model.safetensors"), mean([expected(seed, 3.0) for seed in range(2)])
    for name, before in state.items():
        component = "unet" if "diffusion" in name else "text_encoder"
        key = (
            re.sub(r"^(model\.diffusion_model|cond_stage_model)\.", "", name).removesuffix(".weight").replace(".", "_")
        )
        torch.testing.assert_close(after[name].double() - before.double(), wanted[component, key], atol=1e-5, rtol=1e-5)


def test_names_that_several_modules_of_the_base_have_are_refused(tmp_path):
    a, b = factors(0, (6, 5), 2)
    file = tmp_path / "a.safetensors"
    save_file({"lora_unet_mid_to_q.lora_down.weight": a, "lora_unet_mid_to_q.lora_up.weight": b}, file)
    start = write(tmp_path / "base", {"mid.to_q.weight": torch.ones(6, 5), "mid_to.q.weight": torch.ones(6, 5)})
    with pytest.raises(cs.errors.InputError, match=r"lora_unet_mid_to_q may be mid\.to_q\.weight or mid_to\.q\.weight"):
        cs.merge([f"{start}+{file}"], tmp_path / "out")
    other = write(tmp_path / "other", {"mid.to_k.weight": torch.ones(6, 5)})
    with pytest.raises(cs.errors.InputError, match=r"changes lora_unet_mid_to_q, which .*other does not have"):
        cs.merge([f"{other}+{file}"], tmp_path / "out")


def test_a_convolution_in_three_parts(tmp_path):
    """LyCORIS, `rebuild_tucker`: W = einsum('i j k l, j r, p i -> p r k l', mid, down, up)."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"lora_down": (3, 4, 1, 1), "lora_mid": (3, 3, 3, 3), "lora_up": (6, 3, 1, 1)}
    tensors = {f"lora_unet_conv.{part}.weight": torch.randn(shape, generator=draw) for part, shape in shapes.items()}
    file, start = tmp_path / "a.safetensors", write(tmp_path / "base", {"conv.weight": torch.zeros(6, 4, 3, 3)})
    save_file(tensors | {"lora_unet_conv.alpha": torch.tensor(1.0)}, file)
    down, mid, up = (tensors[f"lora_unet_conv.{part}.weight"].double() for part in shapes)
    wanted = torch.einsum("ijkl,jr,pi->prkl", mid, down.flatten(1), up.flatten(1)) / 3
    merged = load_file(cs.merge([f"{start}+{file}"], tmp_path / "into").output / "model.safetensors")["conv.weight"]
    torch.testing.assert_close(merged.double(), wanted, atol=1e-5, rtol=1e-5)
    alone = changes_of_kohya(cs.merge([file], tmp_path / "out.safetensors").output)
    assert_same(alone, {("unet", "conv"): wanted})


PRODUCTS = {
    "loha": ({"hada_w1_a": (6, 2), "hada_w1_b": (2, 8), "hada_w2_a": (6, 2), "hada_w2_b": (2, 8)}, 2),
    "lokr": ({"lokr_w1": (2, 4), "lokr_w2_a": (3, 2), "lokr_w2_b": (2, 2)}, 2),
    "lokr, whole": ({"lokr_w1": (2, 4), "lokr_w2": (3, 2)}, None),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_lycoris_go_into_the_base_and_are_refused_by_name_without(tmp_path, kind):
    shapes, rank = PRODUCTS[kind]
    draw = torch.Generator().manual_seed(0)
    parts = {part: torch.randn(shape, generator=draw) for part, shape in shapes.items()}
    file, start = tmp_path / "a.safetensors", write(tmp_path / "base", {"q.weight": torch.zeros(6, 8)})
    save_file(
        {f"lora_unet_q.{part}": value for part, value in parts.items()} | {"lora_unet_q.alpha": torch.tensor(3.0)}, file
    )
    parts = {part: value.double() for part, value in parts.items()}
    if kind == "loha":
        wanted = (parts["hada_w1_a"] @ parts["hada_w1_b"]) * (parts["hada_w2_a"] @ parts["hada_w2_b"])
    else:
        second = parts["lokr_w2"] if rank is None else parts["lokr_w2_a"] @ parts["lokr_w2_b"]
        wanted = torch.kron(parts["lokr_w1"], second)
    merged = load_file(cs.merge([f"{start}+{file}"], tmp_path / "out").output / "model.safetensors")["q.weight"]
    torch.testing.assert_close(merged.double(), wanted * (1.0 if rank is None else 3.0 / rank), atol=1e-5, rtol=1e-5)
    with pytest.raises(cs.errors.InputError, match=r"is an adapter of type 'LO(HA|KR)', expected 'LORA'"):
        cs.merge([file, file], tmp_path / "two.safetensors")


def test_nothing_of_the_training_is_written(tmp_path):
    metadata = {"ss_tag_frequency": '{"my photographs": {"alice": 3}}', "ss_base_model_version": "sd_v1",
                "ss_network_module": "networks.lora", "ss_network_dim": "4", "sshs_model_hash": "0"}  # fmt: skip
    models = [kohya(tmp_path / f"{n}.safetensors", n, ranks=(2, 2, 2, 2), metadata=metadata) for n in range(2)]
    with safe_open(cs.merge(models, tmp_path / "out.safetensors").output, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "ss_base_model_version": "sd_v1", "ss_network_alpha": "4.0",
                                     "ss_network_dim": "4", "ss_network_module": "networks.lora"}  # fmt: skip


def broken(change):
    """Return a maker of files of kohya with some tensors changed."""

    def make(path):
        tensors = load_file(kohya(path, 1))
        change(tensors, "lora_unet_mid_block_resnets_0_conv1")
        save_file(tensors, path)
        return path

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken(lambda t, m: t.update({f"{m}.alpha": torch.tensor(0.0)})), "conv1.alpha must be a positive number"),
        (broken(lambda t, m: t.update({f"{m}.alpha": torch.ones(2)})), "conv1.alpha must be a positive number"),
        (broken(lambda t, m: t.pop(f"{m}.lora_up.weight")), r"conv1 has lora_A\.weight alone, expected both"),
        (broken(lambda t, m: t.update({f"{m}.lora_up.weight": torch.ones(6, 5, 1, 1)})), "expected one rank"),
        (broken(lambda t, m: t.update({f"{m}.dora_scale": torch.ones(6)})), "conv1.dora_scale: no factors A and B"),
        (broken(lambda t, m: t.update({"bundle_emb.x": torch.ones(6)})), "bundle_emb.x: no factors A and B"),
        (broken(lambda t, m: t[f"{m}.lora_up.weight"].fill_(torch.nan)), "has NaN or infinite values"),
        (lambda path: kohya(path, 1, metadata={"ss_base_model_version": "sdxl"}), "is 'sdxl', in .*a.safetensors 'sd"),
        (lambda path: diffusers(path, 1, metadata={"lora_adapter_metadata": "["}), "is no JSON object"),
        (lambda path: diffusers(path, 1, alphas=2, metadata=config_in_metadata()), "has alphas both as tensors"),
        (lambda path: diffusers(path, 1, metadata=config_in_metadata(**{"unet.use_dora": True})), "sets use_dora"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_by_name(tmp_path, make, message):
    good = kohya(tmp_path / "a.safetensors", 0, metadata={"ss_base_model_version": "sd_v1"})
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge([good, make(tmp_path / "b.safetensors")], tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_modules_that_no_name_says_are_refused_in_one_line(tmp_path):
    dotted = diffusers(tmp_path / "a.safetensors", 0, text=False)
    a, b = factors(0, (6, 5), 2)
    other = tmp_path / "b.safetensors"
    save_file({"lora_unet_blocks_0_q.lora_down.weight": a, "lora_unet_blocks_0_q.lora_up.weight": b}, other)
    refused = [([dotted, other], "has no module of .*a.safetensors: lora_unet_blocks_0_q here")]
    tensors = load_file(kohya(tmp_path / "c.safetensors", 1, text=False)) | load_file(other)
    save_file(tensors, tmp_path / "c.safetensors")
    refused += [([dotted, tmp_path / "c.safetensors"], "lora_unet_blocks_0_q is a module that .*a.safetensors lacks")]
    both = kohya(tmp_path / "d.safetensors", 1)
    folder = peft_adapter(tmp_path / "peft", 0)
    refused += [([folder, both], "does not say of which component its modules are: text_encoder, unet")]
    for models, message in refused:
        with pytest.raises(cs.errors.InputError, match=message):
            cs.merge(models, tmp_path / "out")


def test_a_whole_model_with_factors_in_it_is_no_adapter(tmp_path):
    a, b = factors(0, (6, 5), 2)
    state = {"q.lora_A.weight": a, "q.lora_B.weight": b, "q.weight": torch.ones(6, 5)}
    models = [write(tmp_path / name, state) for name in "ab"]
    merged = cs.merge([path / "model.safetensors" for path in models], tmp_path / "out.safetensors")
    assert load_file(merged.output).keys() == state.keys()

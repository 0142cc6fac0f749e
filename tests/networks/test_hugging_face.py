"""A matrix of Hugging Face architectures: the groups that are found, literally, proved, and recovered from a copy."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.module_outputs import answer_tensor
from consilience.networks.tracing.trace import trace

pytest.importorskip("transformers")
from tests.copies import COPIES
from tests.networks import hugging_face

pytestmark = pytest.mark.slow

LLAMA = {"embed_tokens": [16], "heads": [2, 2], "heads.2": [2, 2], "gate_proj": [24, 24]}
"""The residual stream; in every layer two heads of keys and values, two heads of queries in each, gated units."""
BLOCKS = {"heads": [4, 4], "query_key": [4, 4], "value": [4, 4]}
INSIDE = "values inside heads share their axis with heads of queries, of which only the outermost moves"
ROTARY = "pairs of rotary positions have frequencies of their own, and stay"
GROUPS = {
    "llama": (LLAMA, [], f"{INSIDE}; {ROTARY}"),
    "mistral": (LLAMA, [], f"{INSIDE}; {ROTARY}"),
    "qwen2": (LLAMA, [], f"{INSIDE}; {ROTARY}"),
    "qwen3": (LLAMA, ["q_norm", "k_norm"], f"{INSIDE}; norms of queries and keys allow signs of pairs, not tried"),
    "gemma": (LLAMA, [], f"{INSIDE}; {ROTARY}"),
    "gemma2": (LLAMA, [], f"{INSIDE}; {ROTARY}"),
    "phi": ({"embed_tokens": [16], "heads": [4, 4], "value": [4, 4], "fc1": [24, 24]}, ["lm_head"],
            "half of a head's queries and keys are rotary; the rest shares their axis"),
    "phi3": ({"embed_tokens": [16], "heads": [2, 2], "gate_up_proj": [24, 24]}, [],
             "queries, keys and values are slices of one array: heads of queries in a head of keys, and values, stay"),
    "mixtral": ({**{name: LLAMA[name] for name in ("embed_tokens", "heads", "heads.2")}, "gate_up_proj": [24, 24]}, [],
                f"experts are chosen by the data, and stay; units of all experts of a layer move alike; {INSIDE}"),
    "gpt2 tied": ({"wte": [16], **BLOCKS, "c_fc": [64, 64]}, [], ""),
    "gpt2 untied": ({"wte": [16], **BLOCKS, "c_fc": [64, 64]}, [], ""),
    "neox": ({"embed_in": [16], "heads": [4, 4], "dense_h_to_4h": [24, 24]}, [],
             "queries, keys and values of a head lie beside each other in one axis: what is inside stays"),
    "bloom": ({"word_embeddings": [16], "dense_h_to_4h": [64, 64]}, ["query_key_value"],
              "slopes of ALiBi differ by head, so heads stay; what is inside lies in one axis with them"),
    "opt": ({"embed_tokens": [16], **BLOCKS, "fc1": [24, 24]}, [], ""),
    "bert": ({"word_embeddings": [16], **BLOCKS, "dense": [24, 24, 16]}, ["classifier"], ""),
    "roberta": ({"word_embeddings": [16], **BLOCKS, "dense": [24, 24, 16]}, ["out_proj"], ""),
    "distilbert": ({"word_embeddings": [16], **BLOCKS, "lin1": [24, 24], "pre_classifier": [16]}, ["classifier"], ""),
    "vit": ({"projection": [16], **BLOCKS, "fc1": [24, 24]}, ["classifier"], ""),
    "deit": ({"projection": [16], **BLOCKS, "fc1": [24, 24]}, ["classifier"], ""),
    "swin": ({"projection": [8], **BLOCKS, "heads": [2, 4], "fc1": [32, 64], "reduction": [16]}, ["classifier"], ""),
    "clip": ({"patch_embedding": [16], "token_embedding": [16], "visual_projection": [8], "heads": [4] * 4,
              "query_key": [4] * 4, "value": [4] * 4, "fc1": [24] * 4}, ["logit_scale"], ""),
    "t5": ({"shared": [16], **BLOCKS, "wi": [24] * 4, "query_key.2": [4, 4], "value.2": [4, 4], "heads.2": [4],
            "query_key.3": [4], "value.3": [4], "query_key.4": [4], "value.4": [4]}, [],
           "heads of all layers of a stack share one table of positions, and move together"),
    "whisper": ({"conv1": [16], "conv2": [16], "embed_tokens": [16], "heads": [4] * 6, "query_key": [4] * 6,
                 "value": [4] * 6, "fc1": [24] * 4}, [], ""),
    "mamba": ({"embeddings": [16], "in_proj": [32, 32], "A_log": [4, 4]}, [], ""),
    "mamba2": ({"embeddings": [16], "in_proj": [8, 8], "in_proj.2": [4, 4], "in_proj.3": [4, 4]}, [], ""),
}  # fmt: skip
"""By architecture: sizes of the groups by the end of their names, modules of arrays that stay, and what theory knows
of the rest."""


def ending(name):
    """Return the last part of a group's name, with its number where it has one."""
    *front, last = name.split(".")
    return f"{front[-1]}.{last}" if last.isdigit() else last


def answers(net, example):
    """Return what a model answers, in one row."""
    with torch.no_grad():
        answer = answer_tensor(net(**example), net)
    return torch.cat([part.flatten() for part in answer.values()]) if isinstance(answer, dict) else answer.flatten()


@COPIES
@pytest.mark.parametrize("name", hugging_face.MODELS)
def test_groups_are_found_proved_and_recovered(name):
    example, net = hugging_face.MODELS[name][1], hugging_face.trained(name)
    expected, unmoved, _ = GROUPS[name]
    symmetry = cs.symmetry(net, example)
    found: dict[str, list[int]] = {}
    for group in symmetry.by_name.values():
        found.setdefault(ending(group.name), []).append(group.size)
    assert found == expected
    moving = {place.array for group in symmetry.by_name for place in symmetry.places(group)}
    assert {array.split(".")[-2 if "." in array else -1] for array in symmetry.layouts if array not in moving} == set(
        unmoved
    )
    assert symmetry.proved

    units = symmetry.units({key: tuple(values.shape) for key, values in net.state_dict().items()})
    rng = np.random.default_rng(0)
    orders = {n: rng.permutation(units[n]) for n, group in symmetry.by_name.items() if group.parent is None}
    renumbered, before = cs.permute(net, symmetry, orders), answers(net, example)
    deviation = float(before.std())
    assert float((answers(renumbered, example) - before).abs().max()) <= 1e-5 * deviation
    fused = cs.fuse([net, renumbered], "rebasin", example=example).model
    assert float((answers(fused, example) - before).abs().max()) <= 1e-5 * deviation


def test_roles_of_groups_of_a_decoder_with_shared_keys():
    roles = cs.symmetry(hugging_face.trained("llama"), hugging_face.IDS).roles
    assert roles["model.embed_tokens"] == "residual stream"
    assert roles["model.layers.0.self_attn.heads"] == "heads of keys and values"
    assert roles["model.layers.0.self_attn.heads.2"] == "heads of queries in a head of keys and values"
    assert roles["model.layers.0.mlp.gate_proj"] == "units"


@pytest.mark.parametrize("name", ["llama", "gpt2 tied", "vit", "bert"])
def test_models_without_weights_are_traced_alike(name):
    make, example = hugging_face.MODELS[name]
    with torch.device("meta"):
        empty = make().eval()
    traced, known = cs.symmetry(empty, example), trace(hugging_face.trained(name), example)
    assert not traced.proved
    assert "unproved: the module is on the meta device" in traced.notes[-1]
    assert traced.groups == known.groups
    assert traced.layouts == known.layouts
    assert traced.aliases == known.aliases

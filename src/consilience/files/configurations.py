"""Comparison of configurations of transformers: what models of equal shapes may still not share.

A model of rotary base 1e4 and one of 5e5 have the same tensors, and so have a Llama and a Mistral. Their mean is
neither. Fields of which that holds (positions, norms, activations, heads, multipliers) must agree, after their
spellings in different versions of transformers have been made one. Fields that a merge does not depend on, such as
dropout, are the first model's; where fields differ that nobody here knows, a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from consilience.checks import Json
from consilience.errors import Problem


def _words(text: str) -> list[str]:
    return text.split()


MUST_AGREE = frozenset(
    _words("""
    model_type hidden_size d_model n_embd num_attention_heads n_head num_heads num_key_value_heads head_dim d_kv
    intermediate_size n_inner d_ff num_experts num_local_experts num_experts_per_tok n_routed_experts
    hidden_act hidden_activation activation_function feed_forward_proj dense_act_fn
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon
    attention_bias mlp_bias qkv_bias use_bias parallel_attn use_parallel_residual parallel_residual
    position_embedding_type rope_theta rope_scaling rope_local_base_freq partial_rotary_factor rotary_pct rotary_dim
    alibi logit_scale final_logit_softcapping attn_logit_softcapping query_pre_attn_scalar sliding_window
    use_sliding_window sliding_window_pattern layer_types max_window_layers embedding_multiplier residual_multiplier
    attention_multiplier logits_scaling scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
    relative_attention_num_buckets relative_attention_max_distance tie_word_embeddings num_hidden_layers n_layer
    num_layers patch_size image_size is_decoder is_encoder_decoder
""")
)
"""Fields that shapes do not show, or not all of them, and that decide what the weights mean."""

WIDTHS = frozenset(_words("hidden_size d_model n_embd intermediate_size n_inner d_ff head_dim d_kv"))
"""Of these, the ones that shapes show: networks of several widths are fused by some methods, checkpoints are not."""

_MAY_DIFFER = frozenset(
    _words("""
    max_position_embeddings n_positions n_ctx attention_dropout hidden_dropout_prob attention_probs_dropout_prob
    resid_pdrop embd_pdrop attn_pdrop dropout dropout_rate classifier_dropout use_cache transformers_version torch_dtype
    dtype _name_or_path name_or_path id2label label2id initializer_range _attn_implementation attn_implementation
    architectures bos_token_id eos_token_id pad_token_id unk_token_id vocab_size output_attentions
    output_hidden_states return_dict pretraining_tp gradient_checkpointing auto_map problem_type
""")
)
"""Fields whose differences need no word: the first model's are taken. Shapes and tokens compare vocabularies."""

_NOTED = frozenset(_words("max_position_embeddings bos_token_id eos_token_id pad_token_id id2label"))
"""Of these, the ones that somebody who uses the merge should know of."""

_SYNONYMS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor", "torch_dtype": "dtype"}
"""Other names of the same field."""

_DEFAULTS: Mapping[str, Any] = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0, "rope_scaling": None}
"""What a field is where a configuration leaves it out, in every model type that has it (transformers)."""

_OF_TYPES: Mapping[str, Mapping[str, Any]] = {
    "rms_norm_eps": {
        **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"), 1e-6),
        **dict.fromkeys(("mixtral", "phi3", "olmo2"), 1e-5),
    },
    "layer_norm_eps": {
        **dict.fromkeys(("bert", "roberta", "vit"), 1e-12),
        **dict.fromkeys(("phi", "gpt_neox", "stablelm", "cohere"), 1e-5),
    },
    "layer_norm_epsilon": dict.fromkeys(("gpt2", "bloom", "falcon"), 1e-5),
    "sliding_window": {
        **dict.fromkeys(("mistral", "gemma2"), 4096),
        **dict.fromkeys(("llama", "mixtral", "qwen2", "qwen3", "phi3", "starcoder2"), None),
    },
    "tie_word_embeddings": {
        **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi", "phi3", "olmo2", "gpt_neox"), False),
        **dict.fromkeys(("gemma", "gemma2", "gpt2", "bloom", "opt", "falcon", "cohere", "starcoder2"), True),
    },
}
"""What it is in model types of which transformers 5.24 says it."""

_STATED_NULL = frozenset(("sliding_window",))
"""Fields of which null says something: that there is none, where the model type may have one."""

_TIED = "tie_word_embeddings"
"""The field whose default is true in some model types and false in others; any other truth value is false if unset."""


def compare_configurations(
    configurations: Sequence[tuple[str, Mapping[str, Json]]], remedy: str, allowed: frozenset[str] = frozenset()
) -> tuple[list[Problem], list[str]]:
    """Return in which fields configurations must not differ and do, with both values, and what should be known.

    The first one, of a model by name, is compared with all others; `remedy` says what to do about a difference. Fields
    that are `allowed` may differ without a word.
    """
    problems: list[Problem] = []
    notes: list[str] = []
    for other, config in configurations[1:]:
        first, of_first = configurations[0]
        for name, ours, theirs in _differences(_canonical(of_first), _canonical(config)):
            field = name.rsplit(".", 1)[-1]
            text = f"config.json: {name} is {_shown(theirs)}, in {first} {_shown(ours)}"
            if field in allowed:
                continue
            if field in MUST_AGREE and _ABSENT not in (ours, theirs):
                problems.append(Problem(other, text, remedy, "E-CONFIG"))
            elif field in MUST_AGREE or field in _NOTED or field not in _MAY_DIFFER:
                notes.append(f"{other}: {text}; the first model's is taken")
    return problems, notes


class _Absent:
    """Stands for a field that a configuration leaves out."""

    def __repr__(self) -> str:
        return "not stated"


_ABSENT = _Absent()


def _canonical(config: Mapping[str, Json]) -> dict[str, Any]:
    """Return a configuration with one spelling for each field, derived fields stated, and nothing that is not set."""
    fields = {_SYNONYMS.get(name, name): value for name, value in config.items()}
    _spell_rotary(fields)
    _state_heads(fields)
    canonical: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and name not in ("rope_scaling", "id2label", "label2id"):
            canonical |= {f"{name}.{inner}": entry for inner, entry in _canonical(value).items()}
        elif value not in (None, False, [], {}) or (name == _TIED and value is False) or name in _STATED_NULL:
            canonical[name] = value
    return canonical


def _spell_rotary(fields: dict[str, Any]) -> None:
    """Spell the fields of rotary positions in one way."""
    # transformers 5 keeps all of the rotary positions in one mapping, earlier versions in two fields.
    rope = fields.pop("rope_parameters", None)
    if isinstance(rope, Mapping) and "rope_theta" in rope:
        rest = {name: value for name, value in rope.items() if name != "rope_theta"}
        fields |= {"rope_theta": rope["rope_theta"], "rope_scaling": rest}
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, Mapping):
        kind = scaling.get("rope_type", scaling.get("type"))
        spelled = {name: value for name, value in scaling.items() if name not in ("type", "rope_type")}
        if "partial_rotary_factor" in spelled:
            fields["partial_rotary_factor"] = spelled.pop("partial_rotary_factor")
        fields["rope_scaling"] = None if kind in (None, "default") else {"rope_type": kind, **spelled}


def _state_heads(fields: dict[str, Any]) -> None:
    """State what follows from the number of heads."""
    heads, width = fields.get("num_attention_heads"), fields.get("hidden_size")
    if isinstance(heads, int) and heads > 0:
        if isinstance(width, int):
            fields["head_dim"] = fields.get("head_dim") or width // heads
        if fields.get("num_key_value_heads") is None:
            fields["num_key_value_heads"] = heads


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ, in the order of the first's, with both values; True and nothing differ too."""
    for name in dict.fromkeys([*first, *other]):
        field = name.rsplit(".", 1)[-1]
        is_truth = field != _TIED and any(one.get(name) is True for one in (first, other))
        default = _DEFAULTS.get(field, False if is_truth else _ABSENT)
        ours, theirs = (one.get(name, _of_type(field, one, default)) for one in (first, other))
        if not _are_equal(ours, theirs) and {None, _ABSENT} != {*map(_hashable, (ours, theirs))}:
            yield name, ours, theirs


def _of_type(field: str, config: Mapping[str, Any], default: Any) -> Any:
    """Return what a field is in a model type where a configuration leaves it out."""
    known = _OF_TYPES.get(field, {})
    return known.get(str(config.get("model_type")), default)


def _hashable(value: Any) -> Any:
    return value if value is None or value is _ABSENT else repr(value)


def _are_equal(ours: Any, theirs: Any) -> bool:
    """Return whether two values are the same; 10000 and 10000.0 are, 1 and true are not."""
    if isinstance(ours, bool) != isinstance(theirs, bool):
        return False
    return bool(ours == theirs)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value) if isinstance(value, _Absent) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # 80: a line of a terminal

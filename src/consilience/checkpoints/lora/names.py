"""Names of modules and factors in the LoRA files of kohya's trainer, LyCORIS and diffusers.

    kohya, LyCORIS    lora_unet_down_blocks_0_attn1_to_q.lora_down.weight, .lora_up.weight, .alpha
    diffusers         unet.down_blocks.0.attn1.to_q.lora_A.weight, .lora_B.weight
      older           unet.down_blocks.0.attn1.to_q.lora.down.weight, ...processor.to_q_lora.down.weight

The first write dots as underscores, so that a name says which module it is only where no two modules of a model have
that name. Two names are of one module where they are the same without dots, as parts of one component (the U-Net or
transformer, a text encoder). Blocks of the U-Net of SDXL are counted in two ways; both are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Convention = Literal["peft", "kohya", "diffusers"]

PARTS = ("lora_A.weight", "lora_B.weight", "lora_B.bias", "lora_mid.weight")
"""Parts of a module with LoRA, as peft names them (and the middle of a convolution in three parts)."""
PRODUCT_PARTS = (
    "hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a",
    "lokr_w2_b",
)  # fmt: skip
"""Parts of modules with LoHa and LoKr."""
ALPHA = "alpha"

_KOHYA = re.compile(r"(?P<module>(?:lora|lycoris)_[^.]+)\.(?P<part>.+)")
_KOHYA_PARTS = {
    "lora_down.weight": "lora_A.weight", "lora_up.weight": "lora_B.weight", "lora_mid.weight": "lora_mid.weight",
    "lora_A.weight": "lora_A.weight", "lora_B.weight": "lora_B.weight", ALPHA: ALPHA,
    **{part: part for part in PRODUCT_PARTS},
}  # fmt: skip
_DOTTED_PARTS = {
    ".lora_A.weight": "lora_A.weight", ".lora_B.weight": "lora_B.weight", ".lora_B.bias": "lora_B.bias",
    ".lora.down.weight": "lora_A.weight", ".lora.up.weight": "lora_B.weight",
    ".lora_linear_layer.down.weight": "lora_A.weight", ".lora_linear_layer.up.weight": "lora_B.weight",
    "_lora.down.weight": "lora_A.weight", "_lora.up.weight": "lora_B.weight",
    ".lora_down.weight": "lora_A.weight", ".lora_up.weight": "lora_B.weight", f".{ALPHA}": ALPHA,
    **{f".{part}": part for part in PRODUCT_PARTS},
}  # fmt: skip
_PEFT = "base_model."
"""What names in folders of peft begin with, which have a configuration."""

_COMPONENTS = {
    "unet": "unet", "transformer": "unet", "diffusion_model": "unet", "text_encoder": "text_encoder",
    "text_encoder_2": "text_encoder_2", "text_encoder_3": "text_encoder_3", "transformer_2": "transformer_2",
    "prior": "prior", "controlnet": "controlnet",
}  # fmt: skip
"""Components by the first part of a name of diffusers; diffusion_model is that of other programs."""
_KOHYA_COMPONENTS = {
    "lora_unet": "unet", "lora_transformer": "unet", "lora_te": "text_encoder", "lora_te1": "text_encoder",
    "lora_te2": "text_encoder_2", "lora_te3": "text_encoder_3",
}  # fmt: skip
_KOHYA_COMPONENT = re.compile(r"(lora_unet|lora_transformer|lora_te\d?|lora|lycoris)_(.+)")


@dataclass(frozen=True)
class LoraNames:
    """What the names of a file of LoRA say."""

    convention: Convention
    modules: dict[str, dict[str, str]]  # names of tensors by module and part
    alphas: dict[str, str] = field(default_factory=dict)  # names of the tensors of alphas, by module
    unknown: tuple[str, ...] = ()  # tensors that are none of these


def read_names(names: Iterable[str]) -> LoraNames | None:
    """Return the modules of a file of LoRA by the names of its tensors; None for files of anything else.

    A file with the weight of a module besides its factors is a whole model's.

    Examples
    --------
    >>> read_names(["lora_unet_mid_to_q.lora_down.weight", "lora_unet_mid_to_q.lora_up.weight"]).modules
    {'lora_unet_mid_to_q': {'lora_A.weight': 'lora_unet_mid_to_q.lora_down.weight', \
'lora_B.weight': 'lora_unet_mid_to_q.lora_up.weight'}}
    >>> list(read_names(["unet.mid.attn1.processor.to_out_lora.down.weight"]).modules)
    ['unet.mid.attn1.to_out.0']
    """
    stored = list(names)
    if any(name.startswith(_PEFT) for name in stored):
        return None
    convention: Convention = "kohya" if any(_KOHYA.fullmatch(name) for name in stored) else "diffusers"
    modules: dict[str, dict[str, str]] = {}
    alphas: dict[str, str] = {}
    unknown = []
    for name in stored:
        found = _of_kohya(name) if convention == "kohya" else _of_diffusers(name)
        if found is None:
            unknown.append(name)
        elif found[1] == ALPHA:
            alphas[found[0]] = name
        elif found[1] in modules.setdefault(found[0], {}):
            unknown.append(name)  # a second tensor of one part, under another spelling
        else:
            modules[found[0]][found[1]] = name
    unknown += [name for module, name in alphas.items() if module not in modules]
    alphas = {module: name for module, name in alphas.items() if module in modules}
    whole = {f"{module}.weight" for module in modules}
    if not modules or whole & set(unknown):
        return None
    return LoraNames(convention, modules, alphas, tuple(unknown))


def _of_kohya(name: str) -> tuple[str, str] | None:
    """Return the module and the part of a tensor of kohya's trainer or LyCORIS; None for others."""
    match = _KOHYA.fullmatch(name)
    if match is None or match["part"] not in _KOHYA_PARTS:
        return None
    return match["module"], _KOHYA_PARTS[match["part"]]


def _of_diffusers(name: str) -> tuple[str, str] | None:
    """Return the module and the part of a tensor of diffusers, its module under its current name; None for others."""
    end = next((end for end in _DOTTED_PARTS if name.endswith(end)), None)
    if end is None:
        return None
    module = name.removesuffix(end).replace(".processor.", ".")
    if end.startswith("_"):  # names of attention processors: to_q_lora, to_out_lora
        parent, _, last = module.rpartition(".")
        if component_of("diffusers", module).startswith("text_encoder"):
            last = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "out_proj"}.get(last, last)
        else:
            last = {"to_out": "to_out.0"}.get(last, last)
        module = f"{parent}.{last}" if parent else last
    return module, _DOTTED_PARTS[end]


def component_of(convention: Convention, module: str) -> str:
    """Return the component that a module is part of, as diffusers names it; empty where its name does not say.

    Examples
    --------
    >>> component_of("kohya", "lora_te2_text_model_encoder_layers_0_mlp_fc1")
    'text_encoder_2'
    >>> component_of("diffusers", "transformer.blocks.0.to_q")
    'unet'
    """
    return _split(convention, module)[0]


def module_in_component(convention: Convention, module: str) -> str:
    """Return a module's name without its component: of kohya's with underscores, of others with dots."""
    return _split(convention, module)[1]


def _split(convention: Convention, module: str) -> tuple[str, str]:
    """Return the component of a module, and its name in that."""
    if convention == "kohya":
        match = _KOHYA_COMPONENT.fullmatch(module)
        return ("", module) if match is None else (_KOHYA_COMPONENTS.get(match[1], ""), match[2])
    first, _, rest = module.partition(".")
    return (_COMPONENTS[first], rest) if convention == "diffusers" and first in _COMPONENTS and rest else ("", module)


def flat_names(convention: Convention, module: str) -> tuple[str, ...]:
    """Return a module's name without dots and component, and what else it is called.

    Examples
    --------
    >>> flat_names("diffusers", "unet.down_blocks.1.attentions.0.proj_in")
    ('down_blocks_1_attentions_0_proj_in',)
    >>> flat_names("kohya", "lora_unet_input_blocks_4_1_proj_in")
    ('input_blocks_4_1_proj_in', 'down_blocks_1_attentions_0_proj_in')
    """
    component, name = _split(convention, module)
    flat = name.replace(".", "_")
    other = _block_of_diffusers(flat) if component in ("unet", "") else flat
    return (flat,) if other == flat else (flat, other)


_IN_RESNET = (
    ("in_layers_2", "conv1"), ("out_layers_3", "conv2"), ("emb_layers_1", "time_emb_proj"),
    ("skip_connection", "conv_shortcut"),
)  # fmt: skip
_OUTSIDE_BLOCKS = {
    "input_blocks_0_0": "conv_in", "out_2": "conv_out", "time_embed_0": "time_embedding_linear_1",
    "time_embed_2": "time_embedding_linear_2", "label_emb_0_0": "add_embedding_linear_1",
    "label_emb_0_2": "add_embedding_linear_2",
}  # fmt: skip
_BLOCK = re.compile(r"(input_blocks|middle_block|output_blocks)_(\d{1,3})(?:_(\d{1,3}))?(?:_(.+))?")
_LAYERS = 3
"""Layers of a block of the U-Nets of Stable Diffusion: two of residuals and attention, and one that resamples."""


def _block_of_diffusers(flat: str) -> str:
    """Return the name in diffusers of a module of Stable Diffusion's own U-Net; any other name as it is.

    Examples
    --------
    >>> _block_of_diffusers("output_blocks_2_2_conv"), _block_of_diffusers("middle_block_1_proj_in")
    ('up_blocks_0_upsamplers_0_conv', 'mid_block_attentions_0_proj_in')
    >>> _block_of_diffusers("input_blocks_3_0_op"), _block_of_diffusers("input_blocks_1_0_in_layers_2")
    ('down_blocks_0_downsamplers_0_conv', 'down_blocks_0_resnets_0_conv1')
    """
    if flat in _OUTSIDE_BLOCKS:
        return _OUTSIDE_BLOCKS[flat]
    match = _BLOCK.fullmatch(flat)
    if match is None:
        return flat
    block, number, inner, rest = match[1], int(match[2]), match[3], match[4] or ""
    if block == "middle_block":
        layer = {0: "resnets_0", 1: "attentions_0", 2: "resnets_1"}.get(number)
        place, rest = f"mid_block_{layer}", "_".join(part for part in (inner, rest) if part)
    elif block == "input_blocks":
        layer = "downsamplers_0" if rest == "op" else _layer(inner, (number - 1) % _LAYERS)
        place, rest = f"down_blocks_{(number - 1) // _LAYERS}_{layer}", "conv" if rest == "op" else rest
    else:
        layer = "upsamplers_0" if rest == "conv" else _layer(inner, number % _LAYERS)
        place = f"up_blocks_{number // _LAYERS}_{layer}"
    if layer is None:
        return flat
    if "resnets" in place:
        rest = dict(_IN_RESNET).get(rest, rest)
    return f"{place}_{rest}" if rest else place


def _layer(inner: str | None, number: int) -> str | None:
    """Return the name of a layer of a block, a residual block or one of attention."""
    name = {"0": "resnets", "1": "attentions"}.get(inner or "")
    return None if name is None else f"{name}_{number}"


def key_of(convention: Convention, module: str) -> tuple[str, str]:
    """Return what names of one module in all conventions have in common: its component, and its name without dots."""
    return component_of(convention, module), flat_names(convention, module)[-1]


def translated(module: str, convention: Convention, to: Convention, prefixes: dict[str, str]) -> str | None:
    """Return a module's name in another convention; None where it is ambiguous, as dots of kohya's names.

    `prefixes` are what the modules of a component begin with there.
    """
    if convention == "kohya":
        return None
    component, name = _split(convention, module)
    if to == "peft":
        return name
    if to == "kohya":
        return f"{prefixes.get(component) or _kohya_prefix(component, prefixes)}_{name.replace('.', '_')}"
    prefix = prefixes.get(component, component)
    return f"{prefix}.{name}" if prefix else name


def _kohya_prefix(component: str, prefixes: dict[str, str]) -> str:
    """Return what kohya's names of a component begin with."""
    if component == "text_encoder":
        return "lora_te1" if "text_encoder_2" in prefixes else "lora_te"
    known = {component: prefix for prefix, component in _KOHYA_COMPONENTS.items() if prefix != "lora_transformer"}
    return known.get(component, "lora_unet")


def prefix_of(convention: Convention, module: str) -> str:
    """Return what a module's name begins with for its component, without what follows."""
    name = module_in_component(convention, module)
    return module.removesuffix(name).rstrip("._")


def names_of_factors(convention: Convention, module: str) -> dict[str, str]:
    """Return the names by part under which a module's factors are written in a file."""
    if convention == "kohya":
        return {
            "lora_A.weight": f"{module}.lora_down.weight", "lora_B.weight": f"{module}.lora_up.weight",
            ALPHA: f"{module}.{ALPHA}",
        }  # fmt: skip
    return {part: f"{module}.{part}" for part in ("lora_A.weight", "lora_B.weight", "lora_B.bias", ALPHA)}

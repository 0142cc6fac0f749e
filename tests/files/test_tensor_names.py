"""Packed weights and states of optimisers are known by names and types; weights with such names are weights."""

import json

import pytest

from consilience.files.quantisation import quantisation_beside, quantisation_in, without_quantisation
from consilience.files.tensor_names import unfit_tensors

HALF = "float16"
PACKED = {
    "bitsandbytes": {"weight": "uint8", "weight.absmax": "uint8", "weight.quant_map": "float32",
                     "weight.quant_state.bitsandbytes__nf4": "uint8"},
    "bitsandbytes, 8 bits": {"weight": "int8", "SCB": "float32", "weight_format": "uint8"},
    "GPTQ": {"qweight": "int32", "qzeros": "int32", "scales": HALF, "g_idx": "int32"},
    "AWQ": {"qweight": "int32", "qzeros": "int32", "scales": HALF},
    "EXL2": {"q_weight": "int32", "q_scale": "int32", "q_scale_max": HALF, "q_groups": "int16", "q_invperm": "int32"},
    "EXL3": {"trellis": "int16", "suh": HALF, "svh": HALF},
    "QuIP#": {"Qidxs": "int16", "SU": HALF, "SV": HALF},
    "AQLM": {"codes": "int16", "codebooks": HALF, "scales": HALF},
    "VPTQ": {"indices": "int32", "centroids.weight": HALF, "weight_scale": HALF},
    "SpQR": {"dense_weights": "uint8", "row_offsets": "int32", "col_vals": "int32"},
    "HQQ": {"W_q": "uint8", "scale": HALF, "zero": HALF, "nbits": "int64"},
    "MXFP4": {"down_proj_blocks": "uint8", "down_proj_scales": "uint8", "down_proj_bias": "bfloat16"},
    "compressed-tensors": {"weight_packed": "int32", "weight_scale": HALF, "weight_shape": "int64"},
    "compressed-tensors, NVFP4": {"weight_packed": "uint8", "weight_scale": "float8_e4m3fn",
                                  "weight_global_scale": "float32"},
    "quanto": {"weight._data": "int8", "weight._scale": HALF},
    "torchao": {"weight:qdata": "int8", "weight:scale": HALF},
    "torchao, underscores": {"_weight_qdata": "int8", "_weight_scale": HALF},
    "torchao, nested": {"weight.__int_data": "int8", "weight.__scale": HALF},
    "torch.ao": {"weight_quantized": "int8", "weight_scale": HALF},
    "scales of its own": {"weight": "float8_e4m3fn", "weight_scale_inv": "float32"},
    "scales of its own, EETQ": {"weight": "int8", "weight_scales": HALF},
    "scales of its own, BitNet": {"weight": "uint8", "weight_scale": "bfloat16"},
    "MLX": {"weight": "uint32", "scales": HALF, "biases": HALF},
    "scales of its own, ModelOpt": {"weight": "uint8", "weight_scale": "float8_e4m3fn", "weight_scale_2": "float32"},
    "scales of its own, no module": {"w1": "float8_e4m3fn", "w1_scale_inv": "float32"},
    "scales of its own, 4 bits": {"weight": "F4", "weight_scale": "float8_e8m0fnu"},
}  # fmt: skip
PREFIXES = ["", "model.layers.0.self_attn.q_proj."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_are_known_by_the_names_of_their_writers(name, prefix):
    dtypes = {"embed.weight": HALF} | {f"{prefix}{leaf}": dtype for leaf, dtype in PACKED[name].items()}
    text, remedy = unfit_tensors(dtypes)
    assert name.partition(",")[0] in text
    assert "is quantised" in text
    assert remedy.startswith("dequantise it first")
    assert "is quantised by my-method" in unfit_tensors(dtypes, "my-method")[0]


@pytest.mark.parametrize("name", PACKED)
def test_floats_of_such_names_are_weights(name):
    assert unfit_tensors({f"layer.{leaf}": "bfloat16" for leaf in PACKED[name]}, "gptq") is None


WEIGHTS = {
    "positions and masks": {"position_ids": "int64", "mask": "bool", "h.weight": HALF},
    "Swin v2": {"attn.logit_scale": "float32", "attn.relative_position_index": "int64", "attn.qkv.weight": HALF},
    "batch normalisation": {"bn.weight": HALF, "bn.running_mean": HALF, "bn.num_batches_tracked": "int64"},
    "8-bit floats without scales": {"l.weight": "float8_e4m3fn", "l.bias": HALF},
    "a codebook of floats": {"quantizer.codebooks": "float32", "quantizer.codes": "int64"},
    "spectra": {"filter": "complex64", "l.scale": "float32"},
    "quantum layers": {"quantized_circuit.weight": "float32"},
    "integers beside weights": {"index": "int32", "l.weight": "float32"},
    "nothing": {},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_weights(name):
    assert unfit_tensors(WEIGHTS[name]) is None


def test_a_stated_quantisation_makes_packed_what_no_name_tells():
    text, _ = unfit_tensors({"l.secret": "int32", "l.weight": HALF, "position_ids": "int64"}, "sinq")
    assert text == "is quantised by sinq (l.secret): packed numbers have no mean"


@pytest.mark.parametrize("name", ["state.0.exp_avg", "0/exp_avg_sq", "optim.momentum_buffer.fc.weight"])
def test_the_state_of_an_optimiser_is_no_model(name):
    assert "has the state of an optimiser" in unfit_tensors({name: "float32", "fc.weight": "float32"})[0]


def test_integers_alone_have_no_mean():
    assert "integers and truth values alone (step)" in unfit_tensors({"step": "int64"})[0]


CONFIGS = {
    "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "compressed-tensors": {"compression_config": {"quant_method": "compressed-tensors"}},
    "pack-quantized": {"compression_config": {"format": "pack-quantized"}},
    "NVFP4": {"quantization": {"quant_algo": "NVFP4"}},
    "quantization": {"quantization": {"group_size": 64, "bits": 4}},
    "mxfp4": {"text_config": {"quantization_config": {"quant_method": "mxfp4"}}},
    "quantization_config": {"quantization_config": {"quant_method": "\x1b[31mred\x1b[0m"}},
}


@pytest.mark.parametrize("method", CONFIGS)
def test_configurations_state_their_quantisation(tmp_path, method):
    config = {"model_type": "llama"} | CONFIGS[method]
    assert quantisation_in(config) == method
    assert quantisation_in(without_quantisation(config)) is None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert quantisation_beside(tmp_path) == method


@pytest.mark.parametrize(
    "config", [{}, {"quantization_config": None}, {"quantization_config": {}}, {"vision_config": 3}]
)
def test_configurations_without_quantisation_state_none(config):
    assert quantisation_in(config) is None


@pytest.mark.parametrize(
    ("name", "method"),
    [("quantize_config.json", "GPTQ"), ("quant_config.json", "AWQ"), ("quanto_qmap.json", "quanto")],
)
def test_files_beside_the_weights_state_it_too(tmp_path, name, method):
    assert quantisation_beside(tmp_path) is None
    (tmp_path / "config.json").write_text("{nope")  # its own reader says so
    (tmp_path / name).write_text('{"bits": 4}')
    assert quantisation_beside(tmp_path) == method

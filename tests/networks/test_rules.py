"""Every rule of tracing is used by a network of the zoo, whose symmetry is proved; but for a list that shrinks."""

from unittest.mock import patch

import pytest
import torch

from consilience.networks.tracing import trace as tracing
from tests.networks.image_nets import GraphConvolution
from tests.networks.zoo import ZOO

WITHOUT_A_NETWORK = """
    __and__ __matmul__ __or__ __xor__ _adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_async
    _assert_scalar _assert_tensor_metadata _fused_rms_norm
    _log_softmax _native_batch_norm_legit_no_training _prelu_kernel _safe_softmax _softmax _to_copy _unsafe_view
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d absolute
    adaptive_avg_pool1d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool3d addmm adjoint alias all
    alpha_dropout amax amin any arctan2 argmax argmin argsort avg_pool1d avg_pool3d baddbmm bilinear bitwise_not
    broadcast_to cdist clip clone concat concatenate constant_pad_nd conv1d conv3d conv_transpose1d
    conv_transpose3d convolution copy copy_ cosine_similarity cudnn_batch_norm cummax cummin cumprod detach divide
    dot double einsum embedding_bag empty empty_like expand_as eye feature_alpha_dropout feature_dropout fill flip
    float float_power floor_divide fmod fractional_max_pool1d fractional_max_pool2d fractional_max_pool3d full
    full_like greater greater_equal im2col index_select isfinite isinf item kthvalue less less_equal
    lift_fresh lift_fresh_copy linalg_vector_norm linspace log_sigmoid log_softmax logcumsumexp logical_and
    logsumexp lp_pool1d lp_pool2d lp_pool3d mH masked_fill_ matrix_H max max_pool1d max_pool1d_with_indices
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices median min mm mode moveaxis movedim multiply mv
    nansum narrow native_batch_norm native_dropout native_layer_norm negative new_empty new_full new_ones new_zeros
    norm not_equal ones ones_like pixel_unshuffle positive prod rand rand_like randint randn randn_like randperm
    ravel real relu6 repeat repeat_interleave reshape_as rnn_relu rnn_relu_cell rnn_tanh_cell roll scalar_tensor
    softsign special_expit split_with_sizes square std std_mean subtract sum swapaxes swapdims tanhshrink
    tensor_split tile to topk true_divide type_as unfold unsafe_chunk unsafe_split upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest3d upsample_trilinear3d var var_mean
    vdot view_as where zero
"""
NO_NETWORK = [*WITHOUT_A_NETWORK.split(), "_grouped_mm", "grouped_mm_fallback"]
"""Rules that no network of the zoo uses yet; a new rule gets a network there, not a line here. Those of assertions are
used by the networks of ``language_models``, those of experts by the Mixtral of ``hugging_face``."""


def noted(name, rule, used):
    def noting(call):
        used.add(name)
        return rule(call)

    return noting


@pytest.mark.slow
def test_every_rule_is_used_by_a_network_of_the_zoo():
    used: set[str] = set()
    rules = {name: noted(name, rule, used) for name, rule in tracing._RULES.items()}
    with patch.dict(tracing._RULES, rules):
        for entry in ZOO.values():
            tracing.trace(entry.module(), entry.inputs())
        for how in ("index_add", "scatter_add", "scatter_reduce"):
            tracing.trace(GraphConvolution(how), torch.zeros(5, 5))
    unused = set(rules) - used
    assert sorted(unused - set(NO_NETWORK)) == [], "add a network with this operator to tests/networks/zoo.py"
    assert sorted(set(NO_NETWORK) - unused) == [], "the zoo has a network with it: take it out of NO_NETWORK"

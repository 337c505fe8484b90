"""Floating-point operations of one operator call by its number of elements, from tables.

An operator counts the operations in its defining formula per element, an elementary function (exp, tanh, erf, sqrt) and
a comparison as 1 each, as XLA's HloCostAnalysis does. Moving data counts nothing. The tables do not import torch: they
serve captured graphs and traces alike.
"""

from __future__ import annotations

_MOVES_ONLY = frozenset(
    {
        "clone", "copy", "_to_copy", "cat", "stack", "repeat", "roll", "flip", "index", "_unsafe_index",
        "index_select", "index_copy", "index_fill", "gather", "scatter", "take", "embedding", "where",
        "masked_fill", "masked_scatter", "masked_select", "nonzero", "constant_pad_nd", "reflection_pad1d",
        "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
        "slice_backward", "select_backward", "diagonal_backward", "unfold_backward", "slice_scatter",
        "select_scatter", "diagonal_scatter", "as_strided_scatter", "tril", "triu", "pixel_shuffle",
        "pixel_unshuffle", "channel_shuffle", "im2col", "_unsafe_view", "lift_fresh", "lift_fresh_copy",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "hardtanh_backward", "fill", "zero",
        "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
        "arange", "linspace", "eye", "scalar_tensor", "rand", "randn", "randint", "randperm", "rand_like",
        "randn_like", "randint_like", "bernoulli", "normal", "uniform", "random", "exponential", "one_hot",
        "_local_scalar_dense", "as_strided", "t", "transpose", "squeeze", "unsqueeze", "detach", "set",
        "resize",
    }
)  # fmt: skip
"""Operators that move, select or make values without arithmetic on them; random numbers count as made."""

_PER_OUTPUT_ELEMENT = {
    "gelu": 5, "gelu_backward": 10, "silu": 4, "silu_backward": 8, "sigmoid": 3, "sigmoid_backward": 3,
    "tanh_backward": 3, "hardtanh": 2, "clamp": 2, "hardswish": 4, "hardswish_backward": 3, "hardsigmoid": 3, "elu": 3,
    "softplus": 3, "mish": 5, "leaky_relu": 2, "addcmul": 3, "addcdiv": 3, "lerp": 3, "_prelu_kernel": 1,
    "_prelu_kernel_backward": 3, "native_dropout": 2, "native_dropout_backward": 2, "mse_loss": 3,
    "mse_loss_backward": 3, "max_pool2d_with_indices_backward": 1, "max_pool3d_with_indices_backward": 1,
    "upsample_linear1d": 3, "upsample_bilinear2d": 7, "upsample_trilinear3d": 15, "upsample_bicubic2d": 31,
}  # fmt: skip
"""Operations per element of the first output. Pointwise operators that are not named count 1; interpolations count the
multiplications and additions of their weights (2, 4, 8 or 16 taps)."""

_PER_INPUT_ELEMENT = {
    "sum": 1, "nansum": 1, "mean": 1, "prod": 1, "amax": 1, "amin": 1, "max": 1, "min": 1, "aminmax": 2, "any": 1,
    "all": 1, "argmax": 1, "argmin": 1, "count_nonzero": 1, "cumsum": 1, "cumprod": 1, "cummax": 1, "cummin": 1,
    "norm": 2, "linalg_vector_norm": 2, "var": 4, "var_mean": 4, "std": 4, "std_mean": 4, "logsumexp": 4,
    "_softmax": 5, "_safe_softmax": 5, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
    "native_layer_norm": 7, "native_layer_norm_backward": 13, "native_group_norm": 7, "native_group_norm_backward": 13,
    "native_batch_norm": 7, "native_batch_norm_backward": 13, "cudnn_batch_norm": 7, "cudnn_batch_norm_backward": 13,
    "_native_batch_norm_legit": 7, "_batch_norm_with_update": 7, "batch_norm_backward": 13, "_fused_rms_norm": 4,
    "_native_batch_norm_legit_no_training": 2, "_adaptive_avg_pool2d": 1, "_adaptive_avg_pool3d": 1,
    "_adaptive_avg_pool2d_backward": 1, "nll_loss_forward": 0, "nll_loss_backward": 0, "nll_loss2d_forward": 0,
    "nll_loss2d_backward": 0, "embedding_dense_backward": 1, "upsample_nearest2d_backward": 1,
    "upsample_nearest3d_backward": 1, "upsample_bilinear2d_backward": 7, "upsample_trilinear3d_backward": 15,
}  # fmt: skip
"""Operations per element of the first tensor read. A normalisation takes 7: mean, difference, square, sum, scale,
weight, bias."""

_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"})


def count_element_flops(
    name: str, *, produced: int, consumed: int | None, pointwise: bool, training: bool = True
) -> int | None:
    """Return the FLOPs of the ATen operator `name` (in place or not), None if no table has it.

    `produced` is the number of elements of the first output, `consumed` that of the first tensor read, None without
    one. Without `training` a batch norm with stored statistics is one multiply-add per element.
    """
    name = name.removesuffix("_")
    if name in _MOVES_ONLY or name.startswith(("empty", "new_empty")):
        return 0
    if name in _BATCH_NORMS and not training:
        return 2 * produced
    if name in _PER_OUTPUT_ELEMENT:
        return _PER_OUTPUT_ELEMENT[name] * produced
    if name in _PER_INPUT_ELEMENT and consumed is not None:
        return _PER_INPUT_ELEMENT[name] * consumed
    return produced if pointwise else None

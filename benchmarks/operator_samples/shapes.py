"""Sample calls of operators that move, join, split or copy elements."""

from __future__ import annotations

from collections.abc import Iterator

from operator_samples.sample import OperatorSample, SampleTensors, call

_SHAPES = ((2, 4, 6), (2, 4, 6, 3), (1, 4, 6, 3), (2, 4, 6, 1), (2, 4, 3, 6, 5))


def view_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Operators that read the same memory under other dimensions."""
    for shape in _SHAPES:
        x, rank = tensors.normal(*shape), len(shape)
        for name in ("alias", "detach", "squeeze"):
            yield call(name, x)
        for dims in (tuple(reversed(range(rank))), (*range(1, rank), 0), (0, *range(2, rank), 1)):
            yield call("permute", x, dims)
        for first, second in ((0, 1), (1, -1), (-2, -1)):
            yield call("transpose.int", x, first, second)
        for dim in (0, 1, -1):
            yield call("unsqueeze", x, dim)
            yield call("squeeze.dim", x, dim)
            yield call("select.int", x, dim, 0)
            yield call("unbind.int", x, dim)
            yield call("slice.Tensor", x, dim, 0, 1)
            yield call("slice.Tensor", x, dim, 0, 2, 2)
            yield call("narrow", x, dim, 0, 1)
            yield call("split.Tensor", x, 2, dim)
            yield call("unsafe_split.Tensor", x, 2, dim)
            yield call("chunk", x, 2, dim)
            yield call("split_with_sizes", x, (1, shape[dim] - 1), dim)
        yield call("squeeze.dims", x, (0, rank - 1))
        yield call("diagonal", x, 0, 1, 2)
        yield call("unfold", x, 1, 2, 2)
        yield call("expand", x, (3, *shape))
        yield call("expand", x, tuple(5 if size == 1 else size for size in shape))
    yield call("t", tensors.normal(4, 6))
    yield call("as_strided", tensors.normal(4, 6), (6, 4), (1, 6), only_strides=True)


def regrouping_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Views that merge and split dimensions, possible only where the merged ones lie side by side."""
    for shape, wanted in (
        ((2, 4, 6), (8, 6)),
        ((2, 4, 6), (2, 24)),
        ((2, 4, 6), (2, 2, 2, 6)),
        ((2, 4, 6), (4, 2, 6)),
        ((2, 4, 6, 3), (2, 4, 18)),
        ((2, 4, 6, 3), (8, 6, 3)),
        ((2, 4, 6, 3), (2, 24, 3)),
        ((2, 4, 6, 3), (2, 2, 2, 6, 3)),
        ((2, 4, 6, 3), (2, 2, 2, 2, 3, 3)),
        ((2, 4, 6, 3), (2, 8, 3, 3)),
        ((2, 4, 6, 3), (-1,)),
        ((2, 4, 6, 3), (2, 1, 4, 6, 1, 3)),
        ((1, 4, 6, 3), (4, 18)),
        ((2, 4, 1, 1), (2, 4)),
        ((2, 4, 3, 6, 5), (2, 4, 90)),
        ((2, 4, 3, 6, 5), (8, 3, 30)),
    ):
        x = tensors.normal(*shape)
        for name in ("view", "_unsafe_view", "reshape"):
            yield call(name, x, wanted)
    x = tensors.normal(2, 4, 6, 3)
    yield call("flatten.using_ints", x, 1, -1)
    yield call("flatten.using_ints", x, 0, 1)
    yield call("unflatten.int", x, 2, (2, 3))


def joining_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Concatenation, stacking, and writing one tensor into another."""
    for shape in _SHAPES:
        first, second = tensors.normal(*shape), tensors.normal(*shape)
        for dim in (0, 1, -1):
            yield call("cat", (first, second), dim)
            yield call("stack", (first, second), dim)
        yield call("slice_scatter", first, tensors.normal(*shape[:1], 2, *shape[2:]), 1, 0, 2)
        yield call("slice_scatter", first, tensors.normal(1, *shape[1:]), 0, 0, 1)
        yield call("select_scatter", first, tensors.normal(*shape[1:]), 0, 0)
        yield call("select_scatter", first, tensors.normal(*shape[:1], *shape[2:]), 1, 0)
        yield call("slice_backward", first, (*shape[:1], 8, *shape[2:]), 1, 0, shape[1], 1)
        yield call("slice_backward", first, (shape[0] + 1, *shape[1:]), 0, 0, shape[0], 1)
        yield call("select_backward", first, (*shape[:1], 5, *shape[1:]), 1, 0)


def moving_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Elements at other places: flipped, rolled, repeated, gathered by index."""
    for shape in _SHAPES:
        x, rank = tensors.normal(*shape), len(shape)
        yield call("flip", x, (1, 2))
        yield call("roll", x, (1, 2), (1, 2))
        yield call("roll", x, (1,), (1,))
        yield call("tril", x)
        yield call("triu", x)
        yield call("repeat", x, (2,) + (1,) * (rank - 1))
        yield call("gather", x, 1, tensors.indices(4, *shape))
        yield call("index_select", x, 1, tensors.indices(4, 3))
        yield call("index.Tensor", x, (None, tensors.indices(4, 3)))
        yield call("_unsafe_index.Tensor", x, (None, tensors.indices(4, 3)))
        yield call("index.Tensor", x, (tensors.indices(shape[0], 3), tensors.indices(4, 3)))
        yield call("index_put", x, (None, tensors.indices(1, 1)), tensors.normal(shape[0], 1, *shape[2:]))
        yield call("scatter.src", x, 1, tensors.indices(1, *shape[:1], 1, *shape[2:]), tensors.normal(*shape))
        yield call("scatter_add", x, 1, tensors.indices(4, *shape), tensors.normal(*shape))
        yield call("masked_fill.Scalar", x, tensors.mask(*shape), 0.0)
        for dim in (0, 1):
            yield call("cumsum", x, dim)
            yield call("sort", x, dim)
        yield call("topk", x, 2, 1)
    yield call("embedding", tensors.normal(10, 6), tensors.indices(10, 2, 4))


def copying_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Copies, fills and draws in the order of their operand."""
    for shape in _SHAPES:
        x, other = tensors.normal(*shape), tensors.normal(*shape)
        yield call("clone", x)
        yield call("_to_copy", x, dtype=x.double().dtype)
        yield call("contiguous", x)
        yield call("lift_fresh_copy", x)
        yield call("copy", x, other)
        yield call("fill.Scalar", x, 1.0)
        yield call("zero", x)
        yield call("zeros_like", x)
        yield call("ones_like", x)
        yield call("full_like", x, 1.0)
        for name in ("empty_like", "rand_like", "randn_like"):
            yield call(name, x, only_strides=True)
        yield call("new_zeros", x, shape)
        yield call("new_full", x, shape, 1.0)
        yield call("new_empty", x, shape, only_strides=True)
        yield call("bernoulli_.float", x, 0.5, only_strides=True)
        yield call("bernoulli.p", x, 0.5, only_strides=True)
        yield call("native_dropout", x, 0.5, True, only_strides=True)
        yield call("native_dropout_backward", x, tensors.mask(*shape), 2.0)
        yield call("dropout", x, 0.5, True, only_strides=True)


def activation_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Pointwise in effect, though torch does not tag all of them."""
    for shape in _SHAPES:
        x, gradient = tensors.normal(*shape), tensors.normal(*shape)
        yield call("glu", x, 1)
        yield call("glu", x, 2 if len(shape) < 5 else 3)
        half = tensors.normal(*shape[:1], shape[1] // 2, *shape[2:])
        yield call("glu_backward", half, x, 1)
        yield call("hardswish", x)
        yield call("hardswish_backward", gradient, x)
        yield call("hardtanh_backward", gradient, x, -1.0, 1.0)
        yield call("hardsigmoid_backward", gradient, x)
        yield call("leaky_relu_backward", gradient, x, 0.1, False)
        yield call("elu_backward", gradient, 1.0, 1.0, 1.0, False, x)
        yield call("softplus_backward", gradient, x, 1.0, 20.0)
        yield call("mish_backward", gradient, x)
        slope = tensors.normal(shape[1]).view(1, -1, *(1,) * (len(shape) - 2))
        yield call("_prelu_kernel", x, slope)
        yield call("_prelu_kernel_backward", gradient, x, slope)
        yield call("log_sigmoid_forward", x)
        yield call("log_sigmoid_backward", gradient, x, tensors.positive(*shape))
        for loss, settings in (("mse_loss", (1,)), ("smooth_l1_loss", (1, 1.0)), ("huber_loss", (1, 1.0))):
            yield call(f"{loss}_backward", tensors.normal(1).squeeze(), x, gradient, *settings)
        yield call("fake_quantize_per_tensor_affine_cachemask", x, 0.1, 0, -128, 127)
        scales, zeros = tensors.positive(shape[1]), tensors.indices(1, shape[1]).int()
        yield call("fake_quantize_per_channel_affine_cachemask", x, scales, zeros, 1, -128, 127)
        yield call("where.self", tensors.mask(*shape), x, gradient)
        yield call("where.ScalarOther", tensors.mask(*shape), x, 0.0)


SHAPE_SAMPLES = (
    view_samples,
    regrouping_samples,
    joining_samples,
    moving_samples,
    copying_samples,
    activation_samples,
)

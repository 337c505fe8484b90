"""Sample calls of operators that sum over dimensions: reductions, softmax, matrix products, attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from operator_samples.sample import OperatorSample, SampleTensors, call

aten = torch.ops.aten
_SHAPES = ((2, 4, 6), (2, 4, 6, 3), (1, 4, 6, 3), (2, 4, 6, 1), (2, 4, 3, 6, 5))


def reduction_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Over one, two and all dimensions, with and without keeping them."""
    for shape in _SHAPES:
        x = tensors.normal(*shape)
        for keepdim in (False, True):
            for dims in ((0,), (1,), (-1,), (1, 2), (0, -1)):
                for name in (
                    "mean.dim",
                    "sum.dim_IntList",
                    "nansum",
                    "amax",
                    "amin",
                    "logsumexp",
                    "any.dims",
                    "all.dims",
                ):
                    yield call(name, x, dims, keepdim)
                for name in ("var", "var_mean", "std", "std_mean"):
                    yield call(f"{name}.correction", x, dims, correction=0, keepdim=keepdim)
                yield call("linalg_vector_norm", x, 2, dims, keepdim)
            for dim in (0, 1, -1):
                for name in ("prod.dim_int", "argmax", "argmin", "max.dim", "min.dim", "any.dim", "all.dim"):
                    yield call(name, x, dim, keepdim)
        for name in ("mean", "sum", "amax", "amin", "var", "prod", "max", "min"):
            yield call(name, x)


def softmax_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Softmax and its logarithm, forward and backward."""
    for shape in _SHAPES:
        x, gradient = tensors.normal(*shape), tensors.normal(*shape)
        for dim in (0, 1, -1):
            for name in ("_softmax", "_log_softmax"):
                yield call(name, x, dim, False)
                yield call(f"{name}_backward_data", gradient, x, dim, torch.float32)


def product_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Matrix products."""
    matrix, other = tensors.normal(6, 8), tensors.normal(8, 5)
    batch, batch_of_others = tensors.normal(3, 6, 8), tensors.normal(3, 8, 5)
    yield call("mm", matrix, other)
    yield call("addmm", tensors.normal(5), matrix, other)
    yield call("bmm", batch, batch_of_others)
    yield call("baddbmm", tensors.normal(3, 6, 5), batch, batch_of_others)
    for shape in ((6, 8), (3, 6, 8), (2, 3, 6, 8)):
        yield call("linear", tensors.normal(*shape), tensors.normal(5, 8), tensors.normal(5))
    yield call("matmul", batch, batch_of_others)
    yield call("matmul", tensors.normal(2, 3, 6, 8), tensors.normal(2, 3, 8, 5))


def attention_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Scaled dot-product attention, (batch, heads, sequence, features)."""
    for batch in (2, 1):
        query, key, value, gradient = (tensors.normal(batch, 3, 8, 16) for _ in range(4))
        yield call("_scaled_dot_product_attention_math", query, key, value)
        yield call("scaled_dot_product_attention", query, key, value)
        if tensors.device == "cpu":
            yield call("_scaled_dot_product_flash_attention_for_cpu", query, key, value)
            result, sums = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)
            yield call(
                "_scaled_dot_product_flash_attention_for_cpu_backward",
                gradient,
                query,
                key,
                value,
                result,
                sums,
                0.0,
                False,
            )


CONTRACTION_SAMPLES = (reduction_samples, softmax_samples, product_samples, attention_samples)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from frx_graph.analyzers.trace.convolutions import infer_convolution_output
from frx_graph.evidence.trace.events import Operand
from frx_graph.evidence.trace.tree import build_tree

Tensor = Callable[..., Operand]


def draw(sketch: Any, image: Operand, weight: Operand, *concrete: str) -> Operand | None:
    sketch.op("aten::convolution", 1, 60, image, weight, concrete=concrete)
    sketch.op("aten::cudnn_convolution", 2, 50, image, weight)
    return infer_convolution_output(build_tree(sketch.build()), 1)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [(28, 3, 1, 1, 1), (29, 3, 2, 0, 1), (30, 5, 3, 2, 2), (31, 1, 2, 0, 1), (32, 7, 2, 3, 1), (33, 4, 1, 1, 3)],
)
def test_the_shape_of_the_result_follows_from_the_arguments(
    sketch: Any, make_tensor: Tensor, size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    image, weight = torch.empty(2, 3, size, size + 1, device="meta"), torch.empty(4, 3, kernel, kernel, device="meta")
    expected = functional.conv2d(image, weight, None, stride, padding, dilation).shape
    lists = [f"[{value}, {value}]" for value in (stride, padding, dilation)]
    found = draw(
        sketch, make_tensor(*image.shape), make_tensor(*weight.shape), "", "", "", *lists, "False", "[0, 0]", "1"
    )
    assert found is not None
    assert found.shape == tuple(expected)


@pytest.mark.parametrize(
    "concrete",
    [
        (),
        ("", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"),  # transposed
        ("", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"),
        ("", "", "", "[1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"),
        ("", "", "", "[9, 9]", "[0, 0]", "[40, 40]", "False", "[0, 0]", "1"),  # no room for the kernel
    ],
)
def test_undetermined_output_shape_is_none(sketch: Any, make_tensor: Tensor, concrete: tuple[str, ...]) -> None:
    assert draw(sketch, make_tensor(2, 3, 8, 8), make_tensor(4, 3, 3, 3), *concrete) is None


def test_output_shape_is_inferred_from_the_gradient(sketch: Any, make_tensor: Tensor) -> None:
    image, weight = make_tensor(2, 3, 8, 8), make_tensor(4, 3, 3, 3)
    sketch.op("ConvolutionBackward0", 100, 200, make_tensor(2, 4, 6, 6), sequence=7, forward_thread=1)
    sketch.op("aten::conv2d", 1, 60, image, weight, sequence=7, forward_thread=0)
    sketch.op("aten::cudnn_convolution", 2, 50, image, weight)
    tree = build_tree(sketch.build())
    found = infer_convolution_output(
        tree, [operator.name for operator in tree.operators].index("aten::cudnn_convolution")
    )
    assert found is not None
    assert found.shape == (2, 4, 6, 6)

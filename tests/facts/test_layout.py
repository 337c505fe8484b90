"""Layout arithmetic against torch's own answers, on tensors that torch made."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.facts.layout import (
    Layout,
    StridePattern,
    classify_layout,
    classify_strides,
    compute_storage_extent,
    get_dimension_order,
    is_channels_last,
    is_contiguous,
    is_dense,
    is_expanded,
    make_contiguous_strides,
    make_ordered_strides,
)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of rank 1 to 5 behind a random permutation, slice and expansion; sizes 0 and 1 included."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    tensor = torch.empty(shape)
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    for dim in range(tensor.dim()):
        choice = draw(st.sampled_from(["keep", "keep", "slice", "step", "expand"]))
        if choice == "slice":
            tensor = tensor.narrow(dim, 0, tensor.shape[dim] // 2)
        elif choice == "step":
            tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
        elif choice == "expand" and tensor.shape[dim] == 1:
            tensor = tensor.expand(*(3 if d == dim else -1 for d in range(tensor.dim())))
    return tensor


@given(views())
def test_contiguity_agrees_with_torch(tensor: torch.Tensor) -> None:
    assert is_contiguous(tensor.shape, tensor.stride()) == tensor.is_contiguous()


@given(views())
def test_channels_last_agrees_with_torch(tensor: torch.Tensor) -> None:
    expected = False
    if tensor.dim() == 4:
        expected = tensor.is_contiguous(memory_format=torch.channels_last)
    elif tensor.dim() == 5:
        expected = tensor.is_contiguous(memory_format=torch.channels_last_3d)
    # torch calls a tensor without elements contiguous in the plain format only.
    if tensor.numel() == 0:
        return
    assert is_channels_last(tensor.shape, tensor.stride()) == expected


@given(views())
def test_density_agrees_with_torch(tensor: torch.Tensor) -> None:
    if tensor.numel() == 0:
        return
    assert is_dense(tensor.shape, tensor.stride()) == torch.ops.aten.is_non_overlapping_and_dense(tensor)


@given(views())
def test_every_layout_matches_its_predicate(tensor: torch.Tensor) -> None:
    shape, strides = tuple(tensor.shape), tensor.stride()
    layout = classify_layout(shape, strides)
    assert (layout is Layout.PLAIN) == is_contiguous(shape, strides)
    if layout is Layout.EXPANDED:
        assert is_expanded(shape, strides)
    if layout in (Layout.PERMUTED, Layout.CHANNELS_LAST):
        assert is_dense(shape, strides)
    if layout is Layout.STRIDED:
        assert not is_dense(shape, strides)
        assert not is_expanded(shape, strides)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms())
def test_order_is_recovered_from_strides(shape: list[int], random: object) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    strides = make_ordered_strides(shape, order)
    assert make_ordered_strides(shape, get_dimension_order(shape, strides)) == strides or 1 in shape
    assert is_dense(shape, strides)


@given(views())
def test_extent_covers_the_last_element(tensor: torch.Tensor) -> None:
    extent = compute_storage_extent(tensor.shape, tensor.stride())
    assert extent <= tensor.untyped_storage().nbytes() // tensor.itemsize
    if tensor.is_contiguous():
        assert extent == tensor.numel()


@pytest.mark.parametrize(
    ("tensor", "pattern"),
    [
        (torch.empty(2, 3, 4), StridePattern.CONTIGUOUS),
        (torch.empty(2, 1, 4, 4).to(memory_format=torch.channels_last), StridePattern.CONTIGUOUS),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), StridePattern.CHANNELS_LAST),
        (torch.empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d), StridePattern.CHANNELS_LAST),
        (torch.empty(2, 3, 4).transpose(1, 2), StridePattern.TRANSPOSED),
        (torch.empty(4, 3).t(), StridePattern.TRANSPOSED),
        (torch.empty(2, 5, 3, 4).transpose(1, 2), StridePattern.HEADS),
        (torch.empty(2, 3, 4).permute(2, 0, 1), StridePattern.PERMUTED),
        (torch.empty(2, 8)[:, :4], StridePattern.ROW_SLICED),
        (torch.empty(2, 8)[:, ::2], StridePattern.INNER_STRIDED),
        (torch.empty(1, 8).expand(4, 8), StridePattern.EXPANDED),
        (torch.empty(0, 8).t(), StridePattern.CONTIGUOUS),
    ],
)
def test_stride_patterns(tensor: torch.Tensor, pattern: StridePattern) -> None:
    assert classify_strides(tuple(tensor.shape), tensor.stride()) is pattern


def test_contiguous_strides_follow_torch_for_empty_dimensions() -> None:
    assert make_contiguous_strides((2, 0, 3)) == torch.empty(2, 0, 3).stride()

"""Orders of results: by hand for what is subtle, and against torch's own views for what hypothesis thinks of."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.facts.layout import get_dimension_order, is_channels_last, is_contiguous, make_ordered_strides
from frx_graph.passes.layouts.dimension_map import (
    canonicalize_order,
    compute_view_strides,
    make_plain_order,
    map_order,
    match_memory_format,
    supports_order,
)
from frx_graph.rules.layout_operator import DimensionMap, load_layout_operators

NHWC = (0, 2, 3, 1)


def call(target: str, *args: Any, mutates: tuple[str, ...] = (), **kwargs: Any) -> OpFacts:
    return OpFacts(
        node="node",
        target=f"aten.{target}",
        operator=f"aten.{target.partition('.')[0]}",
        args=(ValueRef("x"), *args),
        kwargs=kwargs,
        inputs=("x",),
        outputs=("out",),
        mutates=mutates,
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
    )


def mapped(op: OpFacts, shape: tuple[int, ...], order: tuple[int, ...], result: tuple[int, ...]) -> Any:
    return map_order(load_layout_operators()[op.operator].dimensions, op, shape, order, result)


def strides_in_order(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return make_ordered_strides(shape, match_memory_format(shape, order))


def test_a_permuted_stream_is_channels_last_when_permuted_back() -> None:
    op = call("permute.default", (0, 3, 1, 2))
    assert mapped(op, (2, 5, 6, 8), (0, 1, 2, 3), (2, 8, 5, 6)) == NHWC
    assert mapped(call("permute.default", (0, 2, 3, 1)), (2, 8, 5, 6), NHWC, (2, 5, 6, 8)) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("size", "order", "result"),
    [
        ((2, 8, 30), NHWC, (0, 2, 1)),  # rows and columns lie side by side
        ((2, 240), NHWC, None),  # channels and rows do not
        ((2, 240), (0, 1, 2, 3), (0, 1)),
        ((2, 2, 4, 5, 6), NHWC, (0, 3, 4, 1, 2)),  # groups of channels
        ((16, 5, 6), (1, 0, 2, 3), None),
    ],
)
def test_view_maps_an_order_if_merged_dimensions_are_adjacent(
    size: tuple[int, ...], order: tuple[int, ...], result: tuple[int, ...] | None
) -> None:
    assert mapped(call("view.default", size), (2, 8, 5, 6), order, size) == result


def test_an_expanded_result_has_no_order_and_one_that_is_not_keeps_its_own() -> None:
    assert mapped(call("expand.default", (2, 8, 5, 6)), (2, 8, 1, 1), (0, 1, 2, 3), (2, 8, 5, 6)) is None
    assert mapped(call("expand.default", (1, 2, 8, 5, 6)), (2, 8, 5, 6), NHWC, (1, 2, 8, 5, 6)) == (0, 1, 3, 4, 2)


def test_attention_takes_rows_only() -> None:
    row = load_layout_operators()["aten._scaled_dot_product_flash_attention_for_cpu"]
    shape = (2, 3, 8, 16)
    assert supports_order(row, shape, (0, 2, 1, 3))
    assert not supports_order(row, shape, (0, 1, 3, 2))


def test_a_kernel_that_needs_a_memory_format() -> None:
    row = load_layout_operators()["aten.native_group_norm"]
    assert supports_order(row, (2, 8, 5, 6), NHWC)
    assert not supports_order(row, (2, 8, 5, 6), (1, 0, 2, 3))


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (1, 2, 3)])
def test_invalid_order_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="is not an order"):
        map_order(DimensionMap.SAME, call("relu.default"), (2, 3, 4), order, (2, 3, 4))


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


@st.composite
def stored(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(SHAPES)
    return shape, tuple(draw(st.permutations(range(len(shape)))))


@given(stored())
def test_the_canonical_order_is_the_one_that_strides_are_read_back_as(given_: Any) -> None:
    shape, order = given_
    own = canonicalize_order(shape, order)
    long = [dim for dim in order if shape[dim] > 1]
    assert [dim for dim in own if shape[dim] > 1] == long
    assert canonicalize_order(shape, own) == own
    assert get_dimension_order(shape, strides_in_order(shape, order)) == own


@given(stored())
def test_strides_in_an_order_are_what_torch_calls_by_its_name(given_: Any) -> None:
    shape, order = given_
    tensor = torch.empty_strided(shape, strides_in_order(shape, order))
    strides = tensor.stride()
    if canonicalize_order(shape, order) == make_plain_order(shape):
        assert strides == torch.empty(shape).stride()
    elif is_channels_last(shape, strides):
        wanted = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        assert strides == torch.empty(shape).to(memory_format=wanted).stride()
    assert is_contiguous(shape, strides) == tensor.is_contiguous()


@given(stored(), st.data())
def test_a_view_maps_where_torch_makes_one(given_: Any, data: st.DataObject) -> None:
    shape, order = given_
    result = data.draw(factorised(math.prod(shape)))
    tensor = torch.empty_strided(shape, make_ordered_strides(shape, canonicalize_order(shape, order)))
    mapped = map_order(DimensionMap.REGROUP, call("view.default", result), shape, order, result)
    try:
        viewed = tensor.view(result)
    except RuntimeError:
        assert mapped is None
    else:
        assert mapped == get_dimension_order(result, viewed.stride())


@st.composite
def factorised(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of `count` elements."""
    sizes: list[int] = []
    left = count
    while left > 1:
        size = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        sizes.append(size)
        left //= size
    for _ in range(draw(st.integers(0, 2))):
        sizes.insert(draw(st.integers(0, len(sizes))), 1)
    return tuple(sizes)


@given(stored(), st.data())
def test_views_that_move_dimensions_map_as_torch_moves_them(given_: Any, data: st.DataObject) -> None:
    shape, order = given_
    rank = len(shape)
    tensor = torch.empty_strided(shape, strides_in_order(shape, order))
    dim, other = (data.draw(st.integers(-rank, rank - 1)) for _ in range(2))
    dims = tuple(data.draw(st.permutations(range(rank))))
    for op, viewed in (
        (call("permute.default", dims), tensor.permute(dims)),
        (call("transpose.int", dim, other), tensor.transpose(dim, other)),
        (call("unsqueeze.default", dim), tensor.unsqueeze(dim)),
        (call("squeeze.default"), tensor.squeeze()),
        (call("squeeze.dim", dim), tensor.squeeze(dim)),
        (call("squeeze.dims", (dim,)), tensor.squeeze((dim,))),
        (call("select.int", dim, 0), tensor.select(dim, 0)),
        (call("unbind.int", dim), tensor.unbind(dim)[0]),
    ):
        result = tuple(viewed.shape)
        mapped = map_order(load_layout_operators()[op.operator].dimensions, op, shape, order, result)
        assert mapped == get_dimension_order(result, viewed.stride()), op.target


def test_every_permutation_of_an_image_through_a_permute() -> None:
    for order, dims in itertools.product(itertools.permutations(range(4)), repeat=2):
        viewed = torch.empty_strided((2, 3, 4, 5), make_ordered_strides((2, 3, 4, 5), order)).permute(dims)
        op = call("permute.default", dims)
        assert mapped(op, (2, 3, 4, 5), order, tuple(viewed.shape)) == get_dimension_order(
            viewed.shape, viewed.stride()
        )


@pytest.mark.parametrize("shape", [(6, 1, 6), (1, 4, 2, 6, 6), (4, 1, 3, 1), (2, 3, 4), (1, 1, 6), (12,)])
def test_strides_of_views_are_those_of_torch(shape: tuple[int, ...]) -> None:
    total = math.prod(shape)
    results = [
        (a, b, total // a // b) for a in range(1, total + 1) for b in range(1, total + 1) if total % (a * b) == 0
    ]
    refused = 0
    for order in itertools.permutations(range(len(shape))):
        value = torch.empty([shape[dim] for dim in order]).permute(torch.tensor(order).argsort().tolist())
        for result in results:
            found = compute_view_strides(shape, value.stride(), result)
            refused += found is None
            if found is None:
                with pytest.raises(RuntimeError):
                    value.view(result)
            else:
                assert value.view(result).stride() == found
    assert (refused > 0) is (sum(n > 1 for n in shape) > 1)

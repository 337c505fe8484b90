"""Every row of the operator table is held against torch on the CPU, and every row is then spoilt and found out."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from operator_samples.observation import Observation, observe, orders_to_try, sample_calls
from operator_samples.sample import OperatorSample
from operator_samples.verification import contradictions

from frx_graph.facts.operator_overload import find_overload
from frx_graph.passes.layouts.dimension_map import canonicalize_order
from frx_graph.rules.layout_operator import (
    DimensionMap,
    Keeps,
    LayoutOperator,
    LayoutRole,
    Needs,
    load_layout_operators,
)

ROWS = [row for row in load_layout_operators().values() if row.only_on is None]
ELSEWHERE = [row for row in load_layout_operators().values() if row.only_on is not None]


@functools.cache
def samples() -> Mapping[str, tuple[OperatorSample, ...]]:
    return sample_calls("cpu")


@functools.cache
def observed(row: LayoutOperator) -> tuple[Observation, ...]:
    return observe(row, samples().get(row.operator, ()))


def by_name(row: LayoutOperator) -> str:
    return row.operator.removeprefix("aten.")


def skip_if_missing(row: LayoutOperator) -> None:
    if all(find_overload(sample.target) is None for sample in samples()[row.operator]):
        pytest.skip(f"torch {torch.__version__} has no {row.operator}")


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_torch_matches_the_row(row: LayoutOperator) -> None:
    skip_if_missing(row)
    assert observed(row)
    assert contradictions(row, observed(row)) == ()


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_a_spoilt_row_is_found_out(row: LayoutOperator) -> None:
    skip_if_missing(row)
    believed = [what for what, spoilt in spoilt_rows(row) if not contradictions(spoilt, observed(row))]
    assert believed == []


def spoilt_rows(row: LayoutOperator) -> Iterator[tuple[str, LayoutOperator]]:
    """The row with one column changed to each of its other values."""
    yield from (_with(row, dimensions=kind) for kind in DimensionMap if kind is not row.dimensions)
    yield from (_with(row, role=role) for role in LayoutRole if role is not row.role)
    # Nothing said is never wrong: UNKNOWN is what a row may always fall back to.
    # Of an operator that needs a memory format, any order that it takes is plain or channels-last.
    as_good = {row.keeps, Keeps.UNKNOWN} | ({Keeps.ANY} if row.needs is Needs.MEMORY_FORMAT else set())
    yield from (_with(row, keeps=keeps) for keeps in Keeps if keeps not in as_good)
    if row.keeps is not Keeps.UNKNOWN and not row.operator.endswith("_"):
        yield _with(row, devices=frozenset({"elsewhere"}))
    if row.makes is not None:
        yield _with(row, makes=None)
    if row.needs is not Needs.MEMORY_FORMAT:
        yield _with(row, needs=Needs.LAST_INNERMOST if row.needs is None else None)


def _with(row: LayoutOperator, **column: Any) -> tuple[str, LayoutOperator]:
    return str(column), row.model_copy(update=column)


@pytest.mark.parametrize("row", ELSEWHERE, ids=by_name)
def test_a_row_that_cannot_be_tried_here_is_of_an_operator_that_has_no_kernel_here(row: LayoutOperator) -> None:
    name = f"aten::{by_name(row)}"
    keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    assert not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def counterpart(row: LayoutOperator) -> str:
    """The operator that does the same on the CPU, where it is tried."""
    backward = "_backward" if row.operator.endswith("_backward") else ""
    kind = "_scaled_dot_product_flash_attention_for_cpu" if "attention" in row.operator else "native_batch_norm"
    return f"aten.{kind}{backward}"


@pytest.mark.parametrize("row", ELSEWHERE, ids=by_name)
def test_untestable_row_matches_its_counterpart(row: LayoutOperator) -> None:
    tried = load_layout_operators()[counterpart(row)]
    assert tried in ROWS
    assert (row.dimensions, row.role) == (tried.dimensions, tried.role)


def test_every_sample_call_is_of_an_operator_in_the_table() -> None:
    assert samples().keys() == {row.operator for row in ROWS}


def test_every_order_is_tried_up_to_rank_4() -> None:
    assert [len(orders_to_try(rank)) for rank in range(1, 5)] == [1, 2, 6, 24]
    assert {(0, 1, 2, 3, 4), (0, 2, 3, 4, 1)} < set(orders_to_try(5))


@pytest.mark.parametrize(
    ("operator", "ranks"), [("aten.cat", {3, 4, 5}), ("aten.permute", {3, 4, 5}), ("aten.convolution", {3, 4, 5})]
)
def test_what_was_tried(operator: str, ranks: set[int]) -> None:
    seen = observed(load_layout_operators()[operator])
    assert {len(observation.shape) for observation in seen} == ranks
    for shape in {observation.shape for observation in seen}:
        tried = {observation.order for observation in seen if observation.shape == shape}
        assert tried == {canonicalize_order(shape, order) for order in orders_to_try(len(shape))}


def test_a_view_that_would_need_a_copy_is_refused_by_torch_and_by_the_map() -> None:
    assert any(observation.refused for observation in observed(load_layout_operators()["aten.view"]))
    assert not any(observation.refused for observation in observed(load_layout_operators()["aten.reshape"]))


def test_other_values_than_from_plain_operands_are_found() -> None:
    """The backward of adaptive_max_pool3d reads its indices as if they were contiguous."""
    row = load_layout_operators()["aten.adaptive_max_pool3d_backward"]
    careless = row.model_copy(update={"operands": (0, 1, 2)})
    assert any("other values" in line for line in contradictions(careless, observed(careless)))

"""The rule of what is a layout copy, on made-up profiler trees; `test_copy_recorder` has the same on real ones."""

import itertools
from collections.abc import Sequence

import pytest
import torch

from frx_graph.facts.layout import make_contiguous_strides
from frx_graph.measure.operators.aten_copies import find_layout_copies, get_operand_role
from frx_graph.measure.operators.operator_events import OperatorEvent, TensorUse

_clock = itertools.count()


def tensor(
    storage: int,
    sizes: Sequence[int] = (4, 8),
    strides: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> TensorUse:
    own = tuple(make_contiguous_strides(sizes) if strides is None else strides)
    return TensorUse(tuple(sizes), own, dtype, device, storage, storage)


def event(name: str, tensors: Sequence[TensorUse] = (), children: Sequence[OperatorEvent] = ()) -> OperatorEvent:
    return OperatorEvent(f"aten::{name}", tuple(tensors), tuple(children), next(_clock), 10, 0)


TRANSPOSED = tensor(1, strides=(1, 4))
DENSE = tensor(2)


def copied_by(operator: str, source: TensorUse, target: TensorUse = DENSE, *, through: str = "clone") -> OperatorEvent:
    """`operator` makes `target` from its operand `source` through `clone` or `_to_copy`."""
    return event(operator, [source], [event(through, [source], [event("copy_", [target, source])])])


def test_an_operand_that_is_cloned_into_another_order() -> None:
    (copy,) = find_layout_copies([copied_by("mm", TRANSPOSED)])
    assert (copy.role, copy.operand, copy.shape, copy.bytes) == ("input", 0, (4, 8), 2 * 4 * 32)
    assert (copy.source, copy.target) == ("[1, 4]", "[8, 1]")


def test_contiguous_calls_clone_a_level_deeper() -> None:
    inner = event("contiguous", [TRANSPOSED], [event("clone", [TRANSPOSED], [event("copy_", [DENSE, TRANSPOSED])])])
    assert len(find_layout_copies([event("native_layer_norm", [TRANSPOSED], [inner])])) == 1


def test_an_expanded_operand_that_is_materialised() -> None:
    assert len(find_layout_copies([copied_by("mm", tensor(1, strides=(0, 1)))])) == 1


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (TRANSPOSED, tensor(2, dtype=torch.bfloat16)),
        (TRANSPOSED, tensor(2, device="cuda")),
        (tensor(1, (8,)), DENSE),
        (TRANSPOSED, tensor(2, strides=(16, 1))),
        (DENSE, tensor(3)),
        (tensor(1, (4, 1), (1, 7)), tensor(2, (4, 1), (1, 1))),
        (tensor(1, (0, 8), (1, 4)), tensor(2, (0, 8))),
    ],
    ids=["dtype", "device", "broadcast", "into a slice", "same order", "same order but for size 1", "empty"],
)
def test_non_layout_copies_are_ignored(source: TensorUse, target: TensorUse) -> None:
    assert find_layout_copies([copied_by("mm", source, target)]) == ()


def test_an_operators_own_copy_fills_its_result() -> None:
    slice_backward = event("slice_backward", [TRANSPOSED], [event("copy_", [DENSE, TRANSPOSED])])
    assert find_layout_copies([slice_backward]) == ()


def test_the_programs_own_copy_counts() -> None:
    assert len(find_layout_copies([event("copy_", [DENSE, TRANSPOSED])])) == 1
    assert find_layout_copies([event("copy_", [DENSE, tensor(3)])]) == ()


def test_a_clone_that_the_operator_writes_into_is_its_result() -> None:
    clone = event("clone", [TRANSPOSED], [event("copy_", [DENSE, TRANSPOSED])])
    filled = event("masked_fill_", [DENSE])
    assert find_layout_copies([event("masked_fill", [TRANSPOSED], [clone, filled])]) == ()
    assert len(find_layout_copies([event("mm", [TRANSPOSED], [clone, event("transpose_", [DENSE])])])) == 1
    elsewhere = event("fill_", [tensor(9)])
    assert len(find_layout_copies([event("mm", [TRANSPOSED], [clone, elsewhere])])) == 1


def test_a_write_before_the_clone_does_not_make_it_a_result() -> None:
    filled = event("fill_", [DENSE])
    clone = event("clone", [TRANSPOSED], [event("copy_", [DENSE, TRANSPOSED])])
    assert len(find_layout_copies([event("mm", [TRANSPOSED], [filled, clone])])) == 1


@pytest.mark.parametrize("operator", ["clone", "_to_copy", "lift_fresh_copy"])
def test_a_copy_that_the_program_asks_for_counts_in_the_same_order_too(operator: str) -> None:
    call = event(operator, [DENSE], [event("copy_", [tensor(3), DENSE])])
    assert len(find_layout_copies([call])) == 1


def test_operand_is_identified_by_its_memory() -> None:
    weight = tensor(7, (8, 16), (1, 8))
    clone = event("clone", [weight], [event("copy_", [tensor(9, (8, 16)), weight])])
    (copy,) = find_layout_copies([event("mm", [DENSE, weight], [clone])])
    assert (copy.operand, copy.role) == (1, "weight")


def test_operands_sharing_memory_are_identified_by_their_strides() -> None:
    query, key = tensor(5, (4, 8), (24, 1)), tensor(5, (4, 8), (24, 2))
    clone = event("clone", [key], [event("copy_", [tensor(9), key])])
    (copy,) = find_layout_copies([event("bmm", [query, key], [clone])])
    assert copy.operand == 1


def test_a_copy_of_a_copy_is_still_the_operand() -> None:
    first = event("clone", [TRANSPOSED], [event("copy_", [DENSE, TRANSPOSED])])
    view, last = tensor(DENSE.storage, strides=(1, 4)), tensor(4)
    second = event("clone", [view], [event("copy_", [last, view])])
    assert [c.operand for c in find_layout_copies([event("mm", [TRANSPOSED], [first, second])])] == [0, 0]


def test_copied_tensor_that_is_not_an_operand_is_a_result() -> None:
    stranger = tensor(99, strides=(1, 4))
    clone = event("clone", [stranger], [event("copy_", [DENSE, stranger])])
    (copy,) = find_layout_copies([event("upsample", [tensor(5)], [clone])])
    assert (copy.operand, copy.role) == (None, "output")


def test_roles() -> None:
    assert get_operand_role("aten::convolution_backward", 2) == "weight"
    assert get_operand_role("aten::convolution_backward", 1) == "input"
    assert get_operand_role("aten::bmm", 1) == "input"
    assert get_operand_role("aten::mm", None) == "output"

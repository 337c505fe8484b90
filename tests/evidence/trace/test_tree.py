from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.trace.events import ActivityKind, DeviceActivity, HostThread, Operator, RuntimeCall
from frx_graph.evidence.trace.steps import find_steps
from frx_graph.evidence.trace.torch_trace import TorchTrace
from frx_graph.evidence.trace.tree import NONE, TraceTree, build_tree

MAIN, OTHER = HostThread("1", "1"), HostThread("1", "2")


def op(name: str, start: int, end: int, thread: HostThread = MAIN, **fields: Any) -> Operator:
    return Operator(name, start, end - start, thread, **fields)


def trace(
    *operators: Operator, calls: tuple[RuntimeCall, ...] = (), activities: tuple[DeviceActivity, ...] = ()
) -> TorchTrace:
    return TorchTrace(Path("profile.json"), operators, calls, activities, (), {})


def parents(tree: TraceTree) -> dict[str, str | None]:
    names = [operator.name for operator in tree.operators]
    return {name: None if parent == NONE else names[parent] for name, parent in zip(names, tree.parents, strict=True)}


def test_operators_nest_by_time_on_their_thread() -> None:
    tree = build_tree(trace(op("c", 20, 30), op("a", 0, 100), op("b", 10, 50), op("d", 60, 70), op("e", 20, 30, OTHER)))
    assert parents(tree) == {"a": None, "b": "a", "c": "b", "d": "a", "e": None}
    assert tree.self_ns[0] == 50


def test_longer_of_two_operators_that_start_together_is_the_caller() -> None:
    assert parents(build_tree(trace(op("b", 0, 10), op("a", 0, 20)))) == {"a": None, "b": "a"}


def test_first_numbered_of_two_operators_with_the_same_range_is_the_caller() -> None:
    tree = build_tree(trace(op("b", 0, 10, external_id=2), op("a", 0, 10, external_id=1)))
    assert parents(tree) == {"a": None, "b": "a"}


def test_operator_that_starts_at_the_end_of_another_is_its_sibling() -> None:
    assert parents(build_tree(trace(op("a", 0, 10), op("b", 10, 20)))) == {"a": None, "b": None}


def test_rounding_of_whole_microseconds_does_not_break_the_nesting() -> None:
    assert parents(build_tree(trace(op("a", 0, 10_000), op("b", 5_000, 11_000)))) == {"a": None, "b": "a"}


def test_ranges_that_overlap_do_not_contain_each_other() -> None:
    tree = build_tree(trace(op("a", 0, 10_000), op("b", 5_000, 20_000), op("c", 6_000, 9_000)))
    assert parents(tree) == {"a": None, "b": None, "c": "b"}


def test_deep_nesting_and_mutual_overlap_stay_cheap() -> None:
    nested = [op("n", i, 200_000 - i) for i in range(50_000)]
    overlapping = [op("o", 10_000 * i, 10_000 * (i + 50_000), OTHER) for i in range(50_000)]
    tree = build_tree(trace(*nested, *overlapping))
    assert sum(parent == NONE for parent in tree.parents) == 50_001


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=25))
def test_a_parent_comes_first_and_runs_when_its_child_begins(ranges: list[tuple[int, int]]) -> None:
    scale = 10_000
    tree = build_tree(trace(*(op("x", scale * start, scale * (start + length)) for start, length in ranges)))
    for index, parent in enumerate(tree.parents):
        if parent != NONE:
            assert parent < index
            outer, inner = tree.operators[parent], tree.operators[index]
            assert outer.start_ns <= inner.start_ns < outer.end_ns
            assert inner.end_ns <= outer.end_ns


def kernel(correlation: int | None, external_id: int | None = None, start: int = 500) -> DeviceActivity:
    return DeviceActivity(
        "k", start, 10, ActivityKind.KERNEL, correlation=correlation, external_id=external_id, device=0
    )


def test_a_kernel_belongs_to_the_innermost_operator_of_its_launch() -> None:
    tree = build_tree(
        trace(
            op("aten::conv2d", 0, 100),
            op("aten::cudnn_convolution", 10, 60),
            op("aten::add_", 70, 90),
            op("aten::relu", 10, 60, OTHER),
            calls=(RuntimeCall("cudaLaunchKernel", 50, 5, MAIN, 7), RuntimeCall("cudaLaunchKernel", 65, 2, MAIN, 8)),
            activities=(kernel(7), kernel(8)),
        )
    )
    assert [tree.operators[index].name for index in tree.launcher] == ["aten::cudnn_convolution", "aten::conv2d"]
    assert tree.launch_ns == (50, 65)


def test_an_external_id_that_repeats_the_correlation_id_does_not_mislead() -> None:
    tree = build_tree(
        trace(
            op("aten::conv2d", 0, 100, external_id=1),
            op("aten::relu", 200, 300, external_id=7),
            calls=(RuntimeCall("cudaLaunchKernel", 50, 5, MAIN, 7),),
            activities=(kernel(7, external_id=7),),
        )
    )
    assert tree.operators[tree.launcher[0]].name == "aten::conv2d"


def test_without_a_recorded_launch_the_external_id_decides() -> None:
    tree = build_tree(
        trace(op("aten::relu", 200, 300, external_id=7), activities=(kernel(None, 7), kernel(3), kernel(None, 9)))
    )
    assert tree.launcher == (0, NONE, NONE)
    assert tree.launch_ns == (200, 500, 500)


def test_a_backward_node_finds_the_operator_that_recorded_it() -> None:
    tree = build_tree(
        trace(
            op("aten::contiguous", 0, 5, sequence=4),  # not recorded by autograd: it carries the next number
            op("aten::conv2d", 10, 50, sequence=4),
            op("aten::convolution", 11, 49, sequence=4),
            op("autograd::engine::evaluate_function: ConvolutionBackward0", 100, 200, sequence=4, forward_thread=1),
            op("ConvolutionBackward0", 101, 199, sequence=4, forward_thread=1),
            op("aten::convolution_backward", 102, 198),
        )
    )
    names = [operator.name for operator in tree.operators]
    assert names[tree.forward_by_sequence[4]] == "aten::conv2d"
    assert names[tree.backward_node[4]] == "ConvolutionBackward0"
    assert tree.backward_of == (None, None, None, 4, 4, 4)


def test_a_sequence_number_of_two_threads_is_ambiguous() -> None:
    tree = build_tree(trace(op("aten::mm", 0, 5, sequence=4), op("aten::mm", 0, 5, OTHER, sequence=4)))
    assert tree.forward_by_sequence == {}


def step(number: int | str, start: int, end: int) -> Operator:
    return op(f"ProfilerStep#{number}", start, end, annotation=True)


def test_steps_are_those_in_which_something_ran() -> None:
    steps = find_steps(
        trace(
            step(5, 0, 100), step(6, 100, 200), step(7, 200, 210), op("aten::add", 10, 20), op("aten::add", 110, 120)
        ),
        (),
    )
    assert [found.number for found in steps.steps] == [5, 6]
    assert [steps.find_position(time) for time in (-1, 0, 99, 100, 199, 200)] == [None, 0, 0, 1, 1, None]
    assert steps.annotated


def test_a_launch_is_work_too() -> None:
    assert [found.number for found in find_steps(trace(step(5, 0, 100), op("a", 200, 201)), (50,)).steps] == [5]


def test_step_with_an_absurdly_large_number_is_ignored() -> None:
    steps = find_steps(trace(step("9" * 5000, 0, 100), op("aten::add", 10, 20)), ())
    assert not steps.annotated


def test_without_marked_steps_the_trace_is_one() -> None:
    steps = find_steps(trace(op("aten::add", 10, 20), op("Profiler", 0, 5, annotation=True)), (15,))
    assert len(steps) == 1
    assert not steps.annotated
    assert steps.find_position(10) == 0
    assert steps.find_position(20) == 0

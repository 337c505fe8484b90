"""What differs between two recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frx_graph.analyzers.run_change.change import compare_recordings
from frx_graph.analyzers.run_change.recording import KernelUse, KnownProblem, Recording, RecordKind

COPY = KnownProblem("FRX001", "hidden copy", "a.py:3", 2.0)
SIDE = Recording(
    name="a",
    kind=RecordKind.RUN,
    step_ms=(10.0,) * 20,
    labels={"input_bound": 0.4},
    undecided=frozenset({"copy_bound"}),
    shares={"forward": 0.3, "backward": 0.5},
    kernels={"gemm": KernelUse(4, 2.0), "copy": KernelUse(2, 0.5)},
    problems={"x": COPY},
    machine={"device": "A100"},
)


def test_a_recording_equals_itself() -> None:
    change = compare_recordings(SIDE, SIDE)
    assert change.comparable
    assert not change.worse
    assert change.kernels == change.shares == change.labels_new == change.labels_resolved == ()
    assert [one.label for one in change.labels_kept] == ["input_bound"]
    assert change.problems_kept == 1


def test_all_that_changes_is_named() -> None:
    after = replace(
        SIDE,
        step_ms=(5.0,) * 20,
        labels={"sync_bound": 0.2},
        undecided=frozenset(),
        shares={"forward": 0.31, "backward": 0.6},
        kernels={"gemm": KernelUse(4, 2.1), "softmax": KernelUse(1, 0.25)},
        problems={},
        machine={"device": "H100"},
    )
    change = compare_recordings(SIDE, after)
    assert change.steps is not None
    assert change.steps.change == -0.5
    assert [one.label for one in change.labels_resolved] == ["input_bound"]
    assert [one.label for one in change.labels_new] == ["sync_bound"]
    assert [one.name for one in change.shares] == ["backward"]
    assert [(one.name, one.ms) for one in change.kernels] == [("copy", -0.5), ("softmax", 0.25)]
    assert change.problems_resolved == (COPY,)
    assert change.other_machine == ("device: A100, then H100",)
    assert change.regressions == ()


def test_regressions() -> None:
    def find(**changes: Any) -> tuple[str, ...]:
        return compare_recordings(SIDE, replace(SIDE, **changes)).regressions

    assert find(step_ms=(20.0,) * 20) == ("its steps are slower",)
    assert find(labels={"sync_bound": 0.2}) == ("it is sync_bound",)
    assert find(problems={"y": COPY, "z": COPY}) == ("it has 2 new findings",)
    # Of faster steps, another bottleneck limits the rest; a finding is new all the same.
    assert find(step_ms=(5.0,) * 20, labels={"sync_bound": 0.2}) == ()
    assert find(step_ms=(5.0,) * 20, problems={"y": COPY}) == ("it has 1 new finding",)
    # Too little telemetry is no bottleneck.
    assert find(labels={"insufficient_telemetry": 0.9}) == ()


def test_what_one_side_cannot_decide_is_neither_new_nor_resolved() -> None:
    change = compare_recordings(SIDE, replace(SIDE, labels={"copy_bound": 0.3, "input_bound": 0.4}))
    assert (change.labels_new, change.undecided) == ((), ("copy_bound",))
    change = compare_recordings(SIDE, replace(SIDE, labels={}, undecided=frozenset({"input_bound"})))
    assert (change.labels_resolved, change.undecided) == ((), ("input_bound",))


def test_a_side_without_kernels_shows_nothing_about_them() -> None:
    assert compare_recordings(SIDE, replace(SIDE, kernels={})).kernels == ()


def test_two_empty_recordings_are_not_comparable() -> None:
    empty = Recording(name="a", kind=RecordKind.ADVICE)
    assert not compare_recordings(empty, empty).comparable

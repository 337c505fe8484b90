"""What differs between two recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frx_graph.analyzers.run_change.change import compare_recordings
from frx_graph.analyzers.run_change.recording import Cost, KernelUse, KnownProblem, Recording, RecordKind

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


def advice(copy_bytes: float | None, **problems: KnownProblem) -> Recording:
    costs = {"traffic of layout copies": Cost(copy_bytes, "byte")}
    return Recording("a", RecordKind.ADVICE, problems=problems, costs=costs, copy_bytes=copy_bytes)


def waste(bytes_per_step: float | None) -> KnownProblem:
    return KnownProblem("FRX005", "padding", "a.py:3", 1.0, bytes_per_step=bytes_per_step)


def test_advice_is_judged_by_its_cost() -> None:
    before, after = advice(300e6, x=waste(255e6), y=waste(1e6)), advice(45e6, y=waste(1e6), z=waste(2.36e6))
    change = compare_recordings(before, after)
    assert (change.better, change.worse) == (True, False)
    assert change.improvements == ("its layout copies move 255 MB a step less",)
    (cost,) = change.costs
    assert (cost.before, cost.after) == (300e6, 45e6)
    back = compare_recordings(after, before)
    assert (back.better, back.regressions) == (False, ("its layout copies move 255 MB a step more",))


def test_a_new_finding_that_costs_something_is_a_regression() -> None:
    assert compare_recordings(advice(8e6), advice(8e6, x=waste(1e3))).regressions == (
        "its findings cost 1.00 kB a step more",
    )
    # More copies at a place that was known before.
    assert compare_recordings(advice(8e6, x=waste(8e6)), advice(9e6, x=waste(9e6))).worse
    assert not compare_recordings(advice(8e6, x=waste(8e6)), advice(8.01e6, x=waste(8.01e6))).worse


def test_without_known_costs_the_number_of_findings_counts() -> None:
    change = compare_recordings(advice(None, x=waste(None)), advice(None))
    assert (change.finding_cost, change.improvements) == (None, ("1 finding is resolved",))
    change = compare_recordings(advice(None), advice(None, x=waste(None)))
    assert (change.finding_cost, change.regressions) == (None, ("it has 1 new finding",))


def test_findings_of_a_trace_are_judged_by_their_time() -> None:
    slow, fast = replace(COPY, ms_per_step=2.0), replace(COPY, ms_per_step=0.5)
    better = compare_recordings(replace(SIDE, problems={"x": slow}), replace(SIDE, problems={"y": fast}))
    assert (better.better, better.regressions) == (False, ())
    worse = compare_recordings(replace(SIDE, problems={"y": fast}), replace(SIDE, problems={"x": slow}))
    assert worse.regressions == ("its findings cost 1.5 ms a step more",)


def test_findings_match_in_a_file_of_another_name() -> None:
    here = replace(waste(1e6), place="old.py:3", place_in_model="forward model.conv")
    here = replace(here, title="21 convolutions, measured 1.30x faster")
    there = replace(here, place="new.py:3", title="21 convolutions, measured 1.28x faster")
    change = compare_recordings(advice(1e6, x=here), advice(1e6, y=there))
    assert (change.problems_kept, change.problems_new, change.problems_resolved) == (1, (), ())
    # One partner matches once.
    change = compare_recordings(advice(1e6, x=here), advice(2e6, y=there, z=there))
    assert (change.problems_kept, change.problems_new) == (1, (there,))


def test_too_little_telemetry_is_neither_new_nor_resolved() -> None:
    change = compare_recordings(replace(SIDE, labels={"insufficient_telemetry": 1.0}), replace(SIDE, labels={}))
    assert (change.labels_resolved, change.undecided) == ((), ())
    assert (change.before_recorded_too_little, change.after_recorded_too_little) == (True, False)

"""What differs between two recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frx_graph.analyzers.run_change.change import compare_recordings
from frx_graph.analyzers.run_change.recording import (
    COPY_TRAFFIC,
    MEMORY_TRAFFIC,
    Cost,
    KernelUse,
    KnownProblem,
    Recording,
    RecordKind,
)

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
    # Of faster steps, another bottleneck limits the rest, and no finding counts.
    assert find(step_ms=(5.0,) * 20, labels={"sync_bound": 0.2}) == ()
    assert find(step_ms=(5.0,) * 20, problems={"y": COPY}) == ()
    assert find(problems={"y": replace(COPY, ms_per_step=0.0), "z": COPY}) == ("it has 1 new finding",)
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


def advice(copy_bytes: float | None, traffic: float | None = None, **problems: KnownProblem) -> Recording:
    costs = {COPY_TRAFFIC: Cost(copy_bytes, "byte"), MEMORY_TRAFFIC: Cost(traffic, "byte")}
    return Recording("a", RecordKind.ADVICE, problems=problems, costs=costs)


def waste(bytes_per_step: float | None) -> KnownProblem:
    return KnownProblem("FRX005", "padding", "a.py:3", 1.0, bytes_per_step=bytes_per_step)


def test_advice_is_judged_by_its_totals() -> None:
    before, after = advice(300e6, x=waste(255e6), y=waste(1e6)), advice(45e6, y=waste(1e6), z=waste(2.36e6))
    change = compare_recordings(before, after)
    assert (change.better, change.worse) == (True, False)
    assert change.improvements == ("its layout copies move 255 MB a step less",)
    assert [(one.before, one.after) for one in change.costs] == [(300e6, 45e6), (256e6, 3.36e6)]
    back = compare_recordings(after, before)
    assert (back.better, back.regressions) == (False, ("its layout copies move 255 MB a step more",))

    # More copies at a place that was known before.
    assert compare_recordings(advice(8e6, x=waste(8e6)), advice(9e6, x=waste(9e6))).worse
    assert not compare_recordings(advice(8e6, x=waste(8e6)), advice(8.01e6, x=waste(8.01e6))).worse


def test_memory_traffic_decides_before_layout_copies() -> None:
    change = compare_recordings(advice(8e6, traffic=300e6), advice(9e6, traffic=100e6))
    assert (change.worse, change.improvements) == (False, ("its operators move 200 MB a step less",))
    change = compare_recordings(advice(8e6, traffic=300e6), advice(4e6, traffic=299e6))
    assert change.improvements == ("its layout copies move 4.00 MB a step less",)


def test_advice_on_one_program_is_equal_however_it_was_advised() -> None:
    folded, other = advice(8e6, x=waste(0.0), y=waste(None)), replace(waste(9e6), rule="FRX001")
    for after in (advice(8e6, x=waste(8e6), y=waste(5e6)), advice(8e6, x=waste(0.0), z=other), advice(8e6)):
        for change in (compare_recordings(folded, after), compare_recordings(after, folded)):
            assert (change.better, change.worse, change.comparable) == (False, False, True)
    (line,) = compare_recordings(folded, advice(8e6, x=waste(0.0), z=other)).other_machine
    assert "only one side has findings of FRX001" in line


def test_without_known_totals_findings_count_of_rules_that_both_have() -> None:
    kept = waste(None)
    change = compare_recordings(advice(None, x=kept, y=kept), advice(None, x=kept))
    assert (change.finding_cost, change.improvements) == (None, ("1 finding is resolved",))
    change = compare_recordings(advice(None, x=kept), advice(None, x=kept, y=kept, z=waste(0.0)))
    assert (change.finding_cost, change.regressions) == (None, ("it has 1 new finding",))
    assert compare_recordings(advice(None, x=kept), advice(None, x=kept, y=waste(9.0))).worse
    change = compare_recordings(advice(None, x=kept), advice(None, x=kept, y=replace(kept, rule="FRX001")))
    assert (change.worse, len(change.problems_new)) == (False, 1)


def test_findings_of_a_trace_are_judged_by_their_time() -> None:
    slow, fast = replace(COPY, ms_per_step=2.0), replace(COPY, ms_per_step=0.5)
    better = compare_recordings(replace(SIDE, problems={"x": slow}), replace(SIDE, problems={"y": fast}))
    assert (better.better, better.regressions) == (False, ())
    worse = compare_recordings(replace(SIDE, problems={"y": fast}), replace(SIDE, problems={"x": slow}))
    assert worse.regressions == ("its findings cost 1.5 ms a step more",)


@pytest.mark.parametrize(
    ("step_ms", "before", "after", "worse"),
    [
        (10.0, {"x": 1.0}, {"y": 1.001}, False),
        (10.0, {"x": 1.0}, {"x": 1.05}, False),
        (10.0, {"x": 1.0}, {"x": 1.5}, True),
        (10.0, {}, {"x": 0.05}, False),
        (10.0, {}, {"x": 0.0}, False),
        (None, {"x": 1.0}, {"x": 50.0}, True),
        (None, {"x": 1.0, "y": 0.001}, {"x": 1.0, "y": 0.002}, False),
    ],
)
def test_times_vary(step_ms: float | None, before: dict[str, float], after: dict[str, float], worse: bool) -> None:
    side = replace(SIDE, step_ms=() if step_ms is None else (step_ms,) * 20)
    sides = (
        replace(side, problems={key: replace(COPY, ms_per_step=ms) for key, ms in times.items()})
        for times in (before, after)
    )
    assert compare_recordings(*sides).worse is worse


def test_findings_match_in_a_file_of_another_name() -> None:
    here = replace(waste(1e6), place="old.py:3", place_in_model="forward model.conv")
    here = replace(here, title="21 convolutions, measured 1.30x faster")
    there = replace(here, place="new.py:3", title="21 convolutions, measured 1.28x faster")
    change = compare_recordings(advice(1e6, x=here), advice(1e6, y=there))
    assert (change.problems_kept, change.problems_new, change.problems_resolved) == (1, (), ())
    # One partner matches once.
    change = compare_recordings(advice(1e6, x=here), advice(2e6, y=there, z=there))
    assert (change.problems_kept, change.problems_new) == (1, (there,))


def test_findings_of_one_file_or_of_an_unknown_place_do_not_match() -> None:
    here = replace(waste(1e6), place="a.py:10", place_in_model="forward model.conv")
    for old, new in (
        (here, replace(here, place="a.py:90")),
        (replace(here, place_in_model=None), replace(here, place="b.py:10", place_in_model=None)),
    ):
        change = compare_recordings(advice(1e6, x=old), advice(1e6, y=new))
        assert (change.problems_kept, change.problems_new, change.problems_resolved) == (0, (new,), (old,))


def test_too_little_telemetry_is_neither_new_nor_resolved() -> None:
    change = compare_recordings(replace(SIDE, labels={"insufficient_telemetry": 1.0}), replace(SIDE, labels={}))
    assert (change.labels_resolved, change.undecided) == ((), ())
    assert (change.before_recorded_too_little, change.after_recorded_too_little) == (True, False)

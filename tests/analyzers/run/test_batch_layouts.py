"""FRX006 of a run: strides that change between steps while shapes do not."""

from __future__ import annotations

from typing import Any

import pytest

from frx_graph.analyzers.timeline.labels import Answer
from frx_graph.evidence.run.events import RecordedTensor, SnapshotOf
from frx_graph.records import Severity

SHAPE = (8, 3, 32, 32)
PLAIN, LAST = (3072, 1024, 32, 1), (3072, 1, 96, 3)


def image(*strides: int, shape: tuple[int, ...] = SHAPE, name: str = "image") -> RecordedTensor:
    return RecordedTensor(name, shape, strides or None)


def test_strides_that_change_every_step(run: Any) -> None:
    run.batch(0, image(*PLAIN))
    run.batch(1, image(*LAST))
    for number in range(11):
        run.step(batch_layout=number % 2)
    back, there = run.analyse().run.stride_changes
    assert (there.tensor, there.before, there.after, there.count, there.among) == ("image", PLAIN, LAST, 5, 10)
    assert (back.before, back.after, back.count, back.steps) == (LAST, PLAIN, 5, (2, 4, 6, 8, 10))
    assert there.severity is back.severity is Severity.HIGH
    assert run.labels()["shape_instability"].answer is Answer.ABSENT


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (image(*LAST), True),
        (image(*PLAIN), False),
        (image(), False),
        (image(*LAST, shape=(4, 3, 32, 32)), False),
        (image(*LAST, name="other"), False),
    ],
)
def test_stride_changes_are_detected(run: Any, other: RecordedTensor, changed: bool) -> None:
    run.batch(0, image(*PLAIN))
    run.step(batch_layout=0)
    run.batch(1, other)
    run.step(batch_layout=1)
    assert bool(run.analyse().run.stride_changes) is changed


def test_strides_of_size_one_dimensions_are_ignored(run: Any) -> None:
    for layout, strides in enumerate([(5, 1), (1, 1)]):
        run.batch(layout, image(*strides, shape=(1, 5)))
        run.step(batch_layout=layout)
    assert not run.analyse().run.stride_changes


def test_snapshots_by_the_number_of_their_step(run: Any) -> None:
    for strides in (PLAIN, LAST, PLAIN):
        run.batch(None, image(*strides))
        run.step()
    assert [change.count for change in run.analyse().run.stride_changes] == [1, 1]


def test_parameters_that_change(run: Any) -> None:
    run.batch(0, image(*PLAIN, name="conv.weight"), image(*PLAIN, name="fixed"), of=SnapshotOf.PARAMETERS)
    run.step()
    run.step()
    run.batch(0, image(*LAST, name="conv.weight"), of=SnapshotOf.PARAMETERS)
    run.step()
    (change,) = run.analyse().run.stride_changes
    assert (change.of, change.tensor, change.steps) == (SnapshotOf.PARAMETERS, "conv.weight", (2,))
    assert change.severity is Severity.LOW


def test_processes_and_kinds_are_not_compared(run: Any) -> None:
    for process, strides in ((1, PLAIN), (2, LAST)):
        run.process, run.now = process, 0.0
        run.batch(0, image(*strides))
        run.step(batch_layout=0)
        run.step(batch_layout=0)
    run.batch(1, image(*PLAIN))
    run.step(batch_layout=1, kind="eval")
    assert not run.analyse().run.stride_changes


def test_layouts_that_were_not_recorded(run: Any) -> None:
    run.batch(0, image(*PLAIN))
    for layout in (0, 99, None, 0):
        run.step(batch_layout=layout)
    assert not run.analyse().run.stride_changes

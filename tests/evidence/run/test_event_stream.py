"""Events of a run are read; what is torn, foreign or hostile is counted, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run.event_stream import EventStream, read_event_stream
from frx_graph.evidence.run.events import (
    CopySpan,
    EventType,
    GpuSample,
    LoaderMark,
    LoaderWait,
    PhaseSpan,
    ProfilerWindow,
    RecordedTensor,
    RunWarning,
    ShapeSnapshot,
    SnapshotOf,
    StepEnd,
    StepStart,
    SyncWait,
    SystemInfo,
)

AT = 1_700_000_000_000_000_000
WHERE: dict[str, Any] = {"timestamp_ns": AT, "pid": 7, "step_id": 3}


def line(kind: str, duration: int | None = None, **payload: Any) -> dict[str, Any]:
    return {"event_type": kind, **WHERE, "duration_ns": duration, "payload": payload}


def read(folder: Path, *lines: object, end: str = "\n", **limits: int) -> EventStream:
    path = folder / "trace.jsonl"
    texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
    path.write_text("\n".join(texts) + end)
    return read_event_stream(path, **limits)


ONE = {"at_ns": AT, "process": 7, "step": 3}
EVENTS = [
    (line("step_start", step_kind="train"), StepStart(**ONE, kind="train")),
    (
        line("step_end", 5, step_kind="train", status="error", loss=0.5, metrics={"lr": 0.1}, batch_layout=2),
        StepEnd(**ONE, duration_ns=5, kind="train", failed=True, loss=0.5, metrics=(("lr", 0.1),), batch_layout=2),
    ),
    (line("phase_span", 5, phase_name="forward"), PhaseSpan(**ONE, phase="forward", duration_ns=5)),
    (
        line("dataloader_span", 5, stage="next", num_workers=2, prefetch_factor=4, pinned_memory=True, batch_size=8),
        LoaderWait(**ONE, duration_ns=5, workers=2, prefetch_factor=4, pinned=True, batch_size=8),
    ),
    (line("memcpy_span", 5, copy_kind="h2d"), CopySpan(**ONE, direction="h2d", duration_ns=5)),
    (line("sync_wait", 5), SyncWait(**ONE, duration_ns=5)),
    (
        line("shape_snapshot", shapes={"x": [2, 3]}, strides={"x": [3, 1]}, dtypes={"x": "float32"}, layout=1),
        ShapeSnapshot(**ONE, of=SnapshotOf.BATCH, tensors=(RecordedTensor("x", (2, 3), (3, 1), "float32"),), layout=1),
    ),
    (
        line("shape_snapshot", of="parameters", shapes={"w": [2]}, is_training=True, model_name="Net"),
        ShapeSnapshot(
            **ONE, of=SnapshotOf.PARAMETERS, tensors=(RecordedTensor("w", (2,)),), training=True, model="Net"
        ),
    ),
    (
        line("profiler_window", kernel_count=9, median_cuda_kernel_duration_us=4.5, small_kernel_fraction=0.5),
        ProfilerWindow(**ONE, kernels=9, median_kernel_us=4.5, small_kernels=0.5),
    ),
    (
        line("gpu_sample", gpu_index=1, utilization_gpu_pct=50, memory_used_bytes=1, memory_total_bytes=2),
        GpuSample(**ONE, device=1, busy_pct=50, memory_used=1, memory_total=2),
    ),
    (line("system_info", torch="2.13", device_name="cpu"), SystemInfo(**ONE, torch="2.13", device_name="cpu")),
    (line("system_info", rank=3, local_rank=1), SystemInfo(**ONE, rank=3, local_rank=1)),
    (
        line("warning_annotation", message="full", dropped=3, until_ns=9),
        RunWarning(**ONE, message="full", dropped=3, until_ns=9),
    ),
]


@pytest.mark.parametrize(("written", "expected"), EVENTS, ids=lambda one: type(one).__name__)
def test_all_types_are_read(tmp_path: Path, written: dict[str, Any], expected: object) -> None:
    found = read(tmp_path, {**written, "session_id": "x", "schema_version": "0.1.0"}, {**written, "payload": None})
    assert found.events[0] == expected
    assert (len(found.events), found.unreadable) == (2, 0)
    assert {kind for one, _ in EVENTS for kind in [one["event_type"]]} == set(EventType)


@pytest.mark.parametrize("value", ["x", None, [], {}, True, -1, 2**70, 1.5, "NaN"])
@pytest.mark.parametrize(("written", "expected"), EVENTS, ids=lambda one: type(one).__name__)
def test_what_is_wrong_counts_as_missing(tmp_path: Path, written: dict[str, Any], expected: object, value: Any) -> None:
    # A loader's stage decides whether the event is one.
    keys = [key for key in written["payload"] if key != "stage"]
    wrong = [{**written, "payload": {**written["payload"], key: value}} for key in keys]
    wrong += [{**written, key: value} for key in ("pid", "step_id", "payload")]
    found = read(tmp_path, *wrong)
    assert [type(event) for event in found.events] == [type(expected)] * len(wrong)
    assert found.unreadable == 0


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[" * 100_000,
        '{"a": ' * 100_000,
        "null",
        "[1, 2]",
        '"text"',
        "\\x00",
        '{"event_type": "step_end"}',
        '{"event_type": 5, "timestamp_ns": 5}',
        '{"event_type": "step_end", "timestamp_ns": NaN}',
        '{"event_type": "step_end", "timestamp_ns": -5}',
        '{"event_type": "step_end", "timestamp_ns": 1' + "0" * 5000 + "}",
        '{"event_type": "sync_wait", "timestamp_ns": 5}',
        '{"event_type": "sync_wait", "timestamp_ns": 5, "duration_ns": -5}',
        '{"event_type": "step_end", "timestamp_ns": 5, "payload": {"step_kind": "\\ud800"}}',
    ],
)
def test_non_event_lines_are_counted(tmp_path: Path, bad: str) -> None:
    found = read(tmp_path, line("sync_wait", 5), bad, line("sync_wait", 6))
    assert (len(found.events), found.unreadable, found.torn) == (2, 1, False)
    assert found.first_problem is not None
    assert found.first_problem.startswith("line 2: ")
    with pytest.raises(EvidenceError) as caught:
        read(tmp_path, bad, bad)
    assert str(caught.value).startswith(f"{tmp_path / 'trace.jsonl'}: line 1: ")
    assert "\n" not in str(caught.value)


def test_a_device_with_two_wrong_numbers_has_none(tmp_path: Path) -> None:
    (sample,) = read(tmp_path, line("gpu_sample", gpu_index=-1, device=-1, utilization_gpu_pct=50)).events
    assert sample == GpuSample(**ONE, busy_pct=50)


def test_losses_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    found = read(tmp_path, line("step_end", 5, loss="NaN"), line("step_end", 5, loss="-Infinity"))
    assert [repr(event.loss) for event in found.events if isinstance(event, StepEnd)] == ["nan", "-inf"]


def test_other_kinds_and_stages_are_passed_over(tmp_path: Path) -> None:
    found = read(tmp_path, line("telepathy", 5), line("dataloader_span", 5, stage="fetch"), line("sync_wait", 5))
    assert (len(found.events), found.foreign, found.unreadable) == (1, 2, 0)


def test_where_a_loader_begins_and_ends_is_known(tmp_path: Path) -> None:
    begun = line("dataloader_span", 5, stage="begin", num_workers=4)
    found = read(tmp_path, begun, line("dataloader_span", 0, stage="end"))
    begins, ends = LoaderMark(**ONE, begins=True, duration_ns=5, workers=4), LoaderMark(**ONE, duration_ns=0)
    assert found.events == (begins, ends)
    assert found.foreign == 0


def test_strides_that_do_not_fit_a_shape_are_unknown(tmp_path: Path) -> None:
    found = read(tmp_path, line("shape_snapshot", shapes={"x": [2, 3]}, strides={"x": [1]}))
    assert found.events[0].tensors == (RecordedTensor("x", (2, 3)),)  # type: ignore[attr-defined]


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    long = json.dumps(line("step_end", 5, step_kind="x" * 5000))
    found = read(tmp_path, line("sync_wait", 5), long, line("sync_wait", 5), long, end="", longest=1000)
    assert (len(found.events), found.unreadable) == (2, 2)
    assert found.first_problem == "line 2: longer than 1,000 bytes"


def test_events_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    snapshot = line("shape_snapshot", shapes={str(one): [1] for one in range(8)})
    found = read(tmp_path, *[line("sync_wait", 5)] * 5, snapshot, line("sync_wait", 5), most=10)
    assert (len(found.events), found.left_out) == (5, 2)


def test_an_empty_file_holds_no_events(tmp_path: Path) -> None:
    assert read(tmp_path, end="") == EventStream(())


@pytest.mark.parametrize(("kind", "error"), [("missing", "no such file"), ("folder", "expected the events of a run")])
def test_non_file_is_refused(tmp_path: Path, kind: str, error: str) -> None:
    path = tmp_path / "trace.jsonl"
    if kind == "folder":
        path.mkdir()
    with pytest.raises(EvidenceError, match=error):
        read_event_stream(path)


@given(st.data())
def test_files_that_end_anywhere(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = "".join(json.dumps(written) + "\n" for written, _ in EVENTS).encode()
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("cut") / "trace.jsonl"
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    try:
        found = read_event_stream(path)
    except EvidenceError as error:
        assert (lines, "torn" in str(error)) == (0, True)
        return
    complete = lines + (cut < len(whole) and whole[cut : cut + 1] == b"\n")
    assert len(found.events) == complete
    assert found.torn is (complete == lines and cut > 0 and not whole[:cut].endswith(b"\n"))
    assert found.unreadable == 0


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.jsonl"
    path.write_bytes(data)
    try:
        read_event_stream(path)
    except EvidenceError as error:
        assert "\n" not in str(error)

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from frx_graph.runs.tune.step_stream import StepStream


def event(kind: str, at: int, payload: dict[str, object] | None = None, pid: int = 7) -> bytes:
    line = {
        "event_type": kind,
        "timestamp_ns": at,
        "pid": pid,
        "step_id": 0,
        "duration_ns": 1,
        "payload": payload or {},
    }
    return json.dumps(line).encode() + b"\n"


def test_a_file_that_is_not_there_yet_has_no_steps(tmp_path):
    assert StepStream(tmp_path / "trace.jsonl").read() == []


@given(st.data())
def test_steps_are_the_same_however_the_file_grows(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("stream") / "trace.jsonl"
    whole = b"".join(event("step_end", at) for at in range(1, 20))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    path.write_bytes(b"")
    stream, found = StepStream(path), []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        with path.open("ab") as file:
            file.write(whole[begin:end])
        found += stream.read()
    assert [step.end_ns for step in found] == list(range(1, 20))


def test_steps_of_other_processes_and_lines_that_are_no_events_are_passed_over(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(
        event("step_end", 1)
        + b"no json\n[1]\n\xff\xfe\n"
        + event("step_end", 2, pid=8)
        + event("step_end", 3, {"loss": "NaN", "metrics": {"output_mean": 0.5}})
    )
    first, second = StepStream(path).read()
    assert (first.end_ns, second.end_ns) == (1, 3)
    assert second.loss != second.loss
    assert dict(second.metrics) == {"output_mean": 0.5}


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_anything_may_stand_in_the_file(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("stream") / "trace.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert isinstance(StepStream(path).read(), list)


def test_a_step_has_the_samples_of_the_layout_that_it_refers_to(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(
        event("shape_snapshot", 1, {"of": "batch", "layout": 0, "batch_size": 32, "shapes": {}})
        + event("step_end", 2, {"batch_layout": 0})
        + event("shape_snapshot", 3, {"of": "batch", "layout": 1, "batch_size": 5, "shapes": {}})
        + event("step_end", 4, {"batch_layout": 1})
        + event("step_end", 5, {"batch_layout": 0})
    )
    stream = StepStream(path)
    assert [step.samples for step in stream.read()] == [32, 5, 32]
    assert stream.layouts == {0, 1}


def test_without_layouts_a_loader_tells_samples_and_workers(tmp_path):
    path = tmp_path / "trace.jsonl"
    loader = {"stage": "next", "batch_size": 16, "num_workers": 4}
    path.write_bytes(event("dataloader_span", 1, loader) + event("step_end", 2))
    stream = StepStream(path)
    assert [step.samples for step in stream.read()] == [16]
    assert stream.workers == 4

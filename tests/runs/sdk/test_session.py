"""What a program tells of its steps is in the file, and never changes what the program does."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import frx_graph
from frx_graph.runs.sdk.session import AutopilotSession
from frx_graph.runs.sdk.step import HERE

Recorded = Callable[..., list[dict[str, Any]]]

PAYLOAD_KEYS = {
    "step_start": {"step_kind"},
    "step_end": {"step_kind", "status", "loss", "metrics", "batch_layout"},
    "phase_span": {"phase_name"},
    "dataloader_span": {
        *("stage", "num_workers", "prefetch_factor", "pinned_memory", "persistent_workers", "batch_size")
    },
    "memcpy_span": {"copy_kind"},
    "sync_wait": set(),
    "shape_snapshot": {
        *("of", "layout", "shapes", "strides", "dtypes", "tensor_count", "batch_size", "is_training", "model_name")
    },
    "system_info": {"torch", "python", "device_name", "job_name", "rank", "local_rank"},
}


class Loader(list[Any]):
    num_workers, prefetch_factor, pin_memory, persistent_workers, batch_size = 2, 4, True, False, 3


def test_span_without_a_session_is_that_of_the_process(recorded: Recorded) -> None:
    with frx_graph.step_context(3), frx_graph.span("backward"):
        pass
    (event,) = recorded("phase_span")
    assert (event["step_id"], event["payload"]) == (3, {"phase_name": "backward"})


def test_every_event_has_its_documented_keys(recorded: Recorded) -> None:
    session = frx_graph.init(job_name="small")
    model = torch.nn.Linear(4, 2)
    batches = Loader([(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))] * 2)
    for number, batch in enumerate(frx_graph.instrument_dataloader(batches)):
        with frx_graph.step_context(step=number, batch=batch, model=model) as step:
            with session.copy_span("h2d"):
                pass
            with session.forward_span(), session.span("mine"):
                pass
            with session.backward_span():
                pass
            with session.optimizer_span():
                pass
            with session.sync_span():
                pass
            step.record(loss=0.5, accuracy=0.25)
    events = recorded()
    for event in events:
        assert set(event) == {
            *("schema_version", "event_type", "timestamp_ns", "pid", "step_id", "duration_ns", "payload")
        }
        assert set(event["payload"]) == PAYLOAD_KEYS[event["event_type"]]
        assert event["schema_version"] == "0.1.0"
    assert {event["event_type"] for event in events} == set(PAYLOAD_KEYS)
    named = {event["event_type"]: event["payload"] for event in events}
    assert named["system_info"]["job_name"] == "small"
    assert named["system_info"]["torch"] == torch.__version__
    assert named["step_end"] == {
        "step_kind": "train",
        "status": "ok",
        "loss": 0.5,
        "metrics": {"accuracy": 0.25},
        "batch_layout": 0,
    }
    assert [event["payload"]["stage"] for event in recorded("dataloader_span")] == ["begin", "next", "next", "end"]
    assert recorded("dataloader_span")[1]["payload"] | {"stage": ""} == {
        "stage": "",
        "num_workers": 2,
        "prefetch_factor": 4,
        "pinned_memory": True,
        "persistent_workers": False,
        "batch_size": 3,
    }
    phases = [(event["step_id"], event["payload"]["phase_name"]) for event in recorded("phase_span")]
    assert phases == [(n, name) for n in (0, 1) for name in ("mine", "forward", "backward", "optimizer")]


def test_snapshots_show_a_batch_once_and_the_parameters_once(recorded: Recorded) -> None:
    model = torch.nn.Conv2d(3, 4, 3)
    wide = torch.zeros(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for number, batch in enumerate([{"image": wide}, {"image": wide.contiguous()}, {"image": wide}]):
        with frx_graph.step_context(number, batch, model):
            pass
    first, parameters, second = [event["payload"] for event in recorded("shape_snapshot")]
    assert (first["of"], first["layout"], first["batch_size"]) == ("batch", 0, 2)
    assert first["shapes"] == {"image": [2, 3, 8, 8]}
    assert first["strides"] == {"image": [192, 1, 24, 3]}
    assert first["dtypes"] == {"image": "float32"}
    assert (first["is_training"], first["model_name"]) == (True, "Conv2d")
    assert (parameters["of"], parameters["layout"]) == ("parameters", None)
    assert parameters["shapes"] == {"weight": [4, 3, 3, 3], "bias": [4]}
    assert (second["layout"], second["strides"]) == (1, {"image": [192, 64, 8, 1]})
    assert [event["payload"]["batch_layout"] for event in recorded("step_end")] == [0, 1, 0]


def test_nothing_is_recorded_without_an_output_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = frx_graph.init(job_name="no place")
    loader = [1, 2]
    assert session.instrument(loader) is loader
    threads = threading.active_count()
    with frx_graph.step_context(0, torch.zeros(2)) as step, session.forward_span(), session.dataloader_span():
        step.record(loss=1.0)
        step.describe(batch=torch.zeros(3))
    session.flush()
    assert session.recorder is None
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"FRX_AUTO_PERSIST": "1", "FRX_OUTPUT_DIR": "out"}, "out/raw/trace.jsonl"),
        ({"FRX_AUTO_PERSIST": "1"}, "frx-job-run/raw/trace.jsonl"),
        ({"FRX_RAW_TRACE_PATH": "here.jsonl"}, "here.jsonl"),
        ({"FRX_RAW_TRACE_PATH": "here.jsonl", "FRX_AUTO_PERSIST": "1", "FRX_OUTPUT_DIR": "out"}, "here.jsonl"),
        ({"FRX_RAW_TRACE_PATH": "here.jsonl", "FRX_AUTO_PERSIST": "0"}, None),
        ({"FRX_OUTPUT_DIR": "out"}, None),
        ({"FRX_RAW_TRACE_PATH": ""}, None),
    ],
)
def test_where_events_go(
    variables: dict[str, str], where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    session = AutopilotSession.from_env()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with session.step(1):
        pass
    session.flush()
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ([] if where is None else [where])


def test_name_that_collect_gives_goes_before_the_programs(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRX_JOB_NAME", "outer")
    with frx_graph.init(job_name="inner").step(0):
        pass
    assert [event["payload"]["job_name"] for event in recorded("system_info")] == ["outer"]


def test_late_job_name_is_recorded(recorded: Recorded) -> None:
    with frx_graph.step_context(0):
        pass
    frx_graph.init(job_name="late")
    frx_graph.init(job_name="late")
    assert [event["payload"]["job_name"] for event in recorded("system_info")] == [None, "late"]


def test_launcher_rank_is_recorded(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "x")
    with frx_graph.step_context(0):
        pass
    payload = recorded("system_info")[0]["payload"]
    assert (payload["rank"], payload["local_rank"]) == (3, None)


def test_session_is_the_same_for_all(trace: Path) -> None:
    assert AutopilotSession.from_env() is AutopilotSession.from_env() is frx_graph.init()


def test_times_are_exact(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    for number in range(20):
        with session.step(number), session.forward_span():
            pass
    starts, ends, spans = (recorded(name) for name in ("step_start", "step_end", "phase_span"))
    for start, end, span in zip(starts, ends, spans, strict=True):
        assert end["timestamp_ns"] - end["duration_ns"] == start["timestamp_ns"]
        assert start["timestamp_ns"] <= span["timestamp_ns"] - span["duration_ns"]
        assert span["timestamp_ns"] <= end["timestamp_ns"]
    times = [event["timestamp_ns"] for event in ends]
    assert times == sorted(times)


def test_failed_step_is_recorded_and_the_exception_is_unchanged(recorded: Recorded) -> None:
    error = ValueError("the program's")
    with pytest.raises(ValueError) as raised, frx_graph.step_context(7), AutopilotSession.from_env().forward_span():
        raise error
    assert raised.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    (end,) = recorded("step_end")
    assert (end["step_id"], end["payload"]["status"]) == (7, "error")
    assert len(recorded("phase_span")) == 1


def test_spans_belong_to_the_innermost_step(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    with session.span("a"):
        pass
    with session.step(1):
        with session.step(2), session.span("b"):
            pass
        with session.span("c"):
            pass
    with session.span("d"):
        pass
    told = [(event["payload"]["phase_name"], event["step_id"]) for event in recorded("phase_span")]
    assert told == [("a", None), ("b", 2), ("c", 1), ("d", None)]


def test_steps_left_in_another_order_than_entered(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()

    def steps(first: int) -> Iterator[int]:
        for number in itertools.count(first):
            with session.step(number):
                yield number

    left, right = steps(0), steps(100)
    assert [next(left), next(right), next(left), next(right)] == [0, 100, 1, 101]
    left.close()
    right.close()
    assert HERE.step is None
    with session.span("after"):
        pass
    assert recorded("phase_span")[0]["step_id"] is None
    assert sorted(event["step_id"] for event in recorded("step_end")) == [0, 1, 100, 101]


def test_steps_that_are_never_left_do_not_pile_up(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    abandoned = [session.step(number) for number in range(100)]
    for step in abandoned:
        step.__enter__()
    assert HERE.step is not None
    assert HERE.step.depth < 20
    for step in reversed(abandoned):
        step.__exit__(None, None, None)
    HERE.step = None
    assert len(recorded("step_end")) == 100


def test_step_left_twice_or_never_entered_ends_once(recorded: Recorded) -> None:
    step = AutopilotSession.from_env().step(1)
    step.__exit__(None, None, None)
    with step:
        pass
    step.__exit__(None, None, None)
    with step:
        pass
    assert len(recorded("step_end")) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (5, 5),
        (np.int64(6), 6),
        (torch.tensor(7), 7),
        (True, 1),
        (None, 0),
        ("eight", None),
        (9.5, None),
        (2**63 - 1, 2**63 - 1),
        (2**63, None),
        (-(2**70), None),
    ],
)
def test_numbers_of_steps(given: object, told: int | None, recorded: Recorded) -> None:
    with frx_graph.step_context(given):
        pass
    assert [event["step_id"] for event in recorded("step_end")] == [told]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (1.5, 1.5),
        (2, 2.0),
        (np.float32(0.5), 0.5),
        (torch.tensor(0.25, requires_grad=True) * 1, 0.25),
        (torch.tensor([0.25]), 0.25),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (torch.tensor(-math.inf), "-Infinity"),
        (torch.tensor([1.0, 2.0]), None),
        (torch.zeros((), device="meta"), None),
        (10**400, None),
        ("high", None),
        (object(), None),
    ],
)
def test_losses(given: object, told: object, recorded: Recorded) -> None:
    with frx_graph.step_context(0) as step:
        step.record(loss=given, same=given)
    payload = recorded("step_end")[0]["payload"]
    assert payload["loss"] == told
    assert payload["metrics"] == ({} if told is None else {"same": told})


def test_last_value_counts_and_after_the_step_none_does(recorded: Recorded) -> None:
    with frx_graph.step_context(0) as step:
        step.record(loss=1.0, a=1.0)
        step.record(loss=2.0, b=3.0)
        step.record(a=4.0)
    step.record(loss=9.0)
    payload = recorded("step_end")[0]["payload"]
    assert (payload["loss"], payload["metrics"]) == (2.0, {"a": 4.0, "b": 3.0})


def test_hostile_names_stay_one_line_of_json(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    name = '"},\n\x1b[31m\ud800' + "x" * 10_000
    with session.step(0, name), session.span(name):
        pass
    with session.step(1) as step:
        step.record(**{name: 1.0}, **{f"m{i}": 1.0 for i in range(1000)})
    assert recorded("phase_span")[0]["payload"]["phase_name"] == name[:400]
    assert recorded("step_end")[0]["payload"]["step_kind"] == name[:400]
    assert len(recorded("step_end")[1]["payload"]["metrics"]) == 32


def test_kind_is_that_of_the_models_mode_unless_given(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    model = torch.nn.Linear(1, 1).eval()
    for step in (session.step(0), session.step(1, model=model), session.step(2, "warmup", model=model)):
        with step:
            pass
    assert [event["payload"]["step_kind"] for event in recorded("step_end")] == ["train", "eval", "warmup"]


def test_batch_that_comes_within_the_step(recorded: Recorded) -> None:
    with AutopilotSession.from_env().step(0) as step:
        step.describe(batch=torch.zeros(5, 2))
    assert recorded("step_end")[0]["payload"]["batch_layout"] == 0
    assert recorded("shape_snapshot")[0]["payload"]["shapes"] == {"batch": [5, 2]}


def test_a_wait_counts_once(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    batches = iter(session.instrument([1]))
    for _ in range(2):
        with session.dataloader_span():
            next(batches, None)
    with pytest.raises(StopIteration), session.dataloader_span():
        next(batches)
    stages = [event["payload"]["stage"] for event in recorded("dataloader_span")]
    assert stages == ["begin", "next", "next", "end"]


def test_threads_keep_their_steps_apart(recorded: Recorded) -> None:
    session = AutopilotSession.from_env()
    barrier = threading.Barrier(8)

    def work(first: int) -> None:
        barrier.wait()
        for number in range(first, first + 50):
            with session.step(number, batch=torch.zeros(1 + number % 3)), session.span(str(number)):
                pass

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorded("step_end")) == 400
    assert all(str(event["step_id"]) == event["payload"]["phase_name"] for event in recorded("phase_span"))
    layouts = {event["payload"]["layout"]: event["payload"]["shapes"]["batch"] for event in recorded("shape_snapshot")}
    assert sorted(layouts) == [0, 1, 2]
    for end in recorded("step_end"):
        assert layouts[end["payload"]["batch_layout"]] == [1 + end["step_id"] % 3]


def test_importing_and_using_it_loads_no_torch_and_nothing_that_analyses(tmp_path: Path) -> None:
    program = """
        import sys, frx_graph
        with frx_graph.init(job_name="x").step(0), frx_graph.step_context(1, {"a": [1]}, object()) as step:
            step.record(loss=1)
        list(frx_graph.instrument_dataloader([1]))
        loaded = {name.split(".")[1] for name in sys.modules if name.startswith("frx_graph.")}
        heavy = {"torch", "numpy", "pydantic", "rich", "typer"} & set(sys.modules)
        sys.exit(str(sorted(heavy | loaded - {"runs", "evidence", "errors", "version"})))
    """
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in program.splitlines())],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "FRX_RAW_TRACE_PATH": str(tmp_path / "t.jsonl")},
        capture_output=True,
        text=True,
    )
    assert ran.stderr.strip() == "[]"
    assert (tmp_path / "t.jsonl").read_text().count("step_end") == 2

"""Events are lost only where the file says so, and nothing that befalls the file reaches the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frx_graph
from frx_graph.runs.sdk.event_lines import format_phase, format_step_end, format_step_start
from frx_graph.runs.sdk.event_writer import EventWriter
from frx_graph.runs.sdk.session import AutopilotSession

Recorded = Callable[..., list[dict[str, Any]]]
RunProgram = Callable[..., subprocess.CompletedProcess[str]]


def lines_in(path: Path) -> list[dict[str, Any]]:
    # A process that opens the file while another writes may begin with a blank line.
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def phase(at: int) -> tuple[Any, ...]:
    return format_phase, at, None, 1, '"p"'


def test_events_that_come_too_fast_are_counted_where_they_are_missing(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "t.jsonl", max_bytes=10**9, capacity=10)
    with writer._writing:
        for at in range(25):
            writer.put(phase(at))
    writer.flush()
    for at in range(25, 30):
        writer.put(phase(at))
    with writer._writing:
        for at in range(30, 43):
            writer.put(phase(at))
    writer.close()
    events = sorted(lines_in(tmp_path / "t.jsonl"), key=lambda event: event["timestamp_ns"])
    warnings = [event for event in events if event["event_type"] == "warning_annotation"]
    assert sum(event["payload"]["dropped"] for event in warnings) + len(events) - len(warnings) == 43
    assert (warnings[0]["timestamp_ns"], warnings[0]["payload"]["dropped"]) == (10, 15)
    assert [event["payload"]["until_ns"] for event in warnings[:2]] == [24, 42]
    assert "15 events were dropped" in warnings[0]["payload"]["message"]
    assert len(writer.queue) == 0


def test_queue_is_bounded_while_nothing_can_be_written(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "t.jsonl", max_bytes=10**9, capacity=100)
    with writer._writing:
        for at in range(10_000):
            writer.put(phase(at))
        assert len(writer.queue) == 100
    writer.close()


class Arriving:
    def __init__(self) -> None:
        self.number: float | None = None

    def is_ready(self) -> bool:
        return self.number is not None

    def get_value(self) -> float | None:
        return self.number


@pytest.mark.integration
def test_step_whose_loss_is_on_its_way_is_written_when_it_has_come(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer, loss, never = EventWriter(path, max_bytes=10**9), Arriving(), Arriving()
    for step, awaited in enumerate((loss, never)):
        writer.put_when_ready(
            (format_step_end, step, step, 1, '"train"', False, awaited, {"a": awaited}, None, 0), (awaited,)
        )
    writer.put(phase(5))
    writer.flush()
    assert [event["event_type"] for event in lines_in(path)] == ["phase_span"]
    loss.number = 2.5
    writer.flush()
    assert lines_in(path)[1]["payload"] | {"step_kind": ""} == {
        "step_kind": "",
        "status": "ok",
        "loss": 2.5,
        "metrics": {"a": 2.5},
        "batch_layout": None,
    }
    writer.close()
    assert lines_in(path)[2]["payload"]["loss"] is None


def test_steps_end_in_their_order_also_where_only_some_have_a_loss_that_is_on_its_way(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer, loss = EventWriter(path, max_bytes=10**9), Arriving()
    writer.put((format_step_end, 1, 1, 1, '"train"', False, None, None, None, 0))
    writer.put_when_ready((format_step_end, 2, 2, 1, '"train"', False, loss, None, None, 0), (loss,))
    writer.put((format_step_end, 3, 3, 1, '"train"', False, None, None, None, 0))
    writer.flush()
    assert [event["step_id"] for event in lines_in(path)] == [1]
    loss.number = 2.5
    writer.close()
    assert [event["step_id"] for event in lines_in(path)] == [1, 2, 3]


def tell_steps(writer: EventWriter, count: int) -> None:
    for number in range(count):
        writer.put((format_step_start, 10 * number, number, '"train"', 0))
        writer.put((format_phase, 10 * number + 4, number, 4, '"forward"'))
        writer.put((format_step_end, 10 * number + 9, number, 9, '"train"', False, None, None, None, 0))
        if number % 500 == 0:
            writer.flush()
    writer.close()


def test_file_has_a_bound_and_then_only_pairs_of_steps_behind_warnings(tmp_path: Path) -> None:
    path, bound, count = tmp_path / "t.jsonl", 100_000, 20_000
    tell_steps(EventWriter(path, max_bytes=bound, capacity=10**6), count)
    assert bound < path.stat().st_size < 1.5 * bound
    events = lines_in(path)
    ends = [event for event in events if event["event_type"] == "step_end"]
    gaps = [event for event in events if event["event_type"] == "warning_annotation"]
    assert ends[-1]["step_id"] > count * 0.6
    assert len(gaps) > 5
    assert f"{bound} bytes" in gaps[0]["payload"]["message"]
    assert all(event["payload"]["dropped"] > 0 for event in gaps)
    # Between warnings the steps follow each other: what is measured from end to end is one step.
    previous = None
    for event in events:
        if event["event_type"] == "warning_annotation":
            previous = None
        elif event["event_type"] == "step_end":
            assert previous is None or event["step_id"] == previous + 1
            previous = event["step_id"]
    written = len(events) - len(gaps) + sum(event["payload"]["dropped"] for event in gaps)
    assert 3 * count - 3 * 20_000 * 0.4 < written <= 3 * count


def test_bound_of_the_file_is_a_setting(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRX_MAX_TRACE_BYTES", "2000")
    session = AutopilotSession.from_env()
    for number in range(300):
        with session.step(number):
            pass
        session.flush()
    session.close()
    assert 2000 < trace.stat().st_size < 3500


def test_non_numeric_bound_is_reported_and_the_default_used(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRX_MAX_TRACE_BYTES", "1 GB")
    assert AutopilotSession.from_env().settings.max_bytes == 256 * 2**20
    assert capsys.readouterr().err.count("\n") == 1


def test_torn_line_of_a_killed_writer_is_not_joined_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"event_type":"step_end"}\n{"event_ty')
    writer = EventWriter(path, max_bytes=10**9)
    writer.put(phase(1))
    writer.close()
    _, torn, last = path.read_text().splitlines()
    assert torn == '{"event_ty'
    assert json.loads(last)["timestamp_ns"] == 1


@pytest.mark.parametrize("obstacle", ["file for a folder", "folder", "pipe", "forbidden"])
def test_unwritable_path_is_reported_once_and_the_program_continues(
    obstacle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    if obstacle == "file for a folder":
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "t.jsonl"
    elif obstacle == "folder":
        path.mkdir()
    elif obstacle == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/proc/t.jsonl")
    monkeypatch.setenv("FRX_RAW_TRACE_PATH", str(path))
    session = AutopilotSession.from_env()
    for number in range(5):
        with session.step(number) as step, session.forward_span():
            step.record(loss=1.0)
        session.flush()
    said = capsys.readouterr().err
    assert said.startswith(f"frx: events are no longer recorded to {path}: ")
    assert said.count("\n") == 1


def test_full_disk_is_reported_once_and_the_program_continues(run_program: RunProgram, trace: Path) -> None:
    ran = run_program(
        """
        import resource, frx_graph
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        session = frx_graph.init()
        for number in range(100):
            with session.step(number):
                pass
            session.flush()
        print("done")
        """
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert ran.stderr.startswith("frx: events are no longer recorded")
    assert ran.stderr.count("\n") == 1
    *whole, _torn = trace.read_text().split("\n")
    assert all(json.loads(line) for line in whole)


def test_killed_program_leaves_all_but_the_last_moment(trace: Path) -> None:
    program = """
        import itertools, sys, frx_graph
        session = frx_graph.init()
        for number in itertools.count():
            with session.step(number), session.forward_span():
                pass
            if number == 2000:
                print("go", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    deadline = time.monotonic() + 60
    while not trace.exists() or b'"step_id":1000,' not in trace.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    *whole, _torn = trace.read_bytes().split(b"\n")
    assert len([json.loads(line) for line in whole]) > 3000


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("before a step", []),
        ("in a step", ["step_start"]),
        ("in a span", ["step_start"]),
        ("after a span", ["step_start", "phase_span"]),
        ("after the step", ["step_start", "phase_span", "step_end"]),
    ],
)
def test_killed_program_leaves_what_it_did_half_a_second_before(
    moment: str, expected: list[str], run_program: RunProgram, trace: Path
) -> None:
    ran = run_program(
        f"""
        import os, signal, time, frx_graph
        session = frx_graph.init()
        def reach(moment):
            if moment == {moment!r}:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
        with session.step(0):
            pass
        reach("before a step")
        with session.step(1) as step:
            reach("in a step")
            with session.forward_span():
                reach("in a span")
            reach("after a span")
            step.record(loss=0.5)
        reach("after the step")
        """
    )
    assert ran.returncode == -signal.SIGKILL
    assert trace.read_bytes().endswith(b"\n")
    assert [event["event_type"] for event in lines_in(trace) if event["step_id"] == 1] == expected
    assert [event["event_type"] for event in lines_in(trace) if event["step_id"] == 0] == ["step_start", "step_end"]


def test_events_of_threads_are_all_written_and_keep_their_order(tmp_path: Path) -> None:
    path, threads_count, each = tmp_path / "t.jsonl", 6, 2_000
    writer = EventWriter(path, max_bytes=10**9)
    barrier = threading.Barrier(threads_count)

    def put_events(thread: int) -> None:
        barrier.wait()
        for at in range(each):
            writer.put((format_phase, at, thread, 1, '"p"'))
            if at % 500 == 0:
                writer.flush()

    threads = [threading.Thread(target=put_events, args=(number,)) for number in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    events = lines_in(path)
    for number in range(threads_count):
        assert [event["timestamp_ns"] for event in events if event["step_id"] == number] == list(range(each))


def test_queue_takes_many_times_its_capacity_while_it_is_written(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "t.jsonl", max_bytes=10**9, capacity=8)
    for at in range(100):
        writer.put(phase(at))
        if at % 8 == 7:
            writer.flush()
    writer.close()
    assert [event["timestamp_ns"] for event in lines_in(tmp_path / "t.jsonl")] == list(range(100))


def test_span_that_finds_no_room_is_counted(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = AutopilotSession.from_env()
    with session.step(0):
        pass
    assert session.recorder is not None
    writer = session.recorder.writer
    with writer._writing:
        writer.room = len(writer.queue) + 1
        for _ in range(5):
            with session.forward_span():
                pass
    session.close()
    events = lines_in(trace)
    assert sum(event["event_type"] == "phase_span" for event in events) == 1
    (warning,) = [event for event in events if event["event_type"] == "warning_annotation"]
    assert warning["payload"]["dropped"] == 4


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what this process writes with `os.write`."""
    lengths: list[int] = []
    write = os.write

    def write_and_note(file: int, data: Any) -> int:
        lengths.append(len(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", write_and_note)
    return lengths


def test_chunk_of_events_is_one_write(tmp_path: Path, writes: list[int]) -> None:
    writer = EventWriter(tmp_path / "t.jsonl", max_bytes=10**9)
    writer.put(phase(0))
    writer.flush()
    with writer._writing:
        for at in range(1, 200):
            writer.put(phase(at))
    writes.clear()
    writer.flush()
    assert len(writes) == 1
    writer.close()
    assert len(lines_in(tmp_path / "t.jsonl")) == 200


def test_losses_that_arrive_together_are_one_write(tmp_path: Path, writes: list[int]) -> None:
    path = tmp_path / "t.jsonl"
    writer, losses = EventWriter(path, max_bytes=10**9), [Arriving() for _ in range(50)]
    for number, loss in enumerate(losses):
        event = (format_step_end, number, number, 1, '"train"', False, loss, None, None, 0)
        writer.put_when_ready(event, (loss,))
    with writer._writing:
        for number, loss in enumerate(losses):
            loss.number = float(number)
    writes.clear()
    writer.flush()
    assert len(writes) <= 2
    writer.close()
    assert [event["payload"]["loss"] for event in lines_in(path)] == [float(number) for number in range(50)]


def test_chunk_that_crosses_the_bound_of_the_file_is_cut(tmp_path: Path) -> None:
    path, bound = tmp_path / "t.jsonl", 5_000
    writer = EventWriter(path, max_bytes=bound)
    writer.put(phase(0))
    with writer._writing:
        for at in range(1, 250):
            writer.put(phase(at))
    writer.close()
    longest = max(map(len, path.read_text().splitlines(keepends=True)))
    assert bound <= path.stat().st_size < 1.5 * bound + longest


def test_processes_that_share_a_file_do_not_tear_each_others_lines(trace: Path) -> None:
    program = """
        import frx_graph
        session = frx_graph.init(job_name="x" * 300)
        for number in range(1000):
            with session.step(number), session.span("y" * 300):
                pass
            if number % 20 == 0:
                session.flush()
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    processes = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    events = lines_in(trace)
    for process in processes:
        own = [
            event["step_id"] for event in events if event["pid"] == process.pid and event["event_type"] == "step_end"
        ]
        assert own == list(range(1000))
    ranks = {event["pid"]: event["payload"]["rank"] for event in events if event["event_type"] == "system_info"}
    assert ranks == {process.pid: rank for rank, process in enumerate(processes)}


def test_forked_child_writes_its_own_steps_and_none_of_its_parents(recorded: Recorded, trace: Path) -> None:
    session = AutopilotSession.from_env()
    with session.step(1, batch=[]), session.span("parent"):
        children = []
        for number in (100, None):
            child = os.fork()
            if not child:
                if number is not None:
                    with session.step(number), session.span("child"):
                        pass
                    session.flush()
                os._exit(0)
            children.append(child)
            assert os.waitpid(child, 0)[1] == 0
    told = sorted((event["pid"] == os.getpid(), event["step_id"]) for event in recorded("step_end"))
    assert told == [(False, 100), (True, 1)]
    assert {event["pid"] for event in recorded()} == {os.getpid(), children[0]}
    assert len(recorded("system_info")) == 2
    spans = {event["payload"]["phase_name"]: event["step_id"] for event in recorded("phase_span")}
    assert spans == {"parent": 1, "child": 100}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_write_their_last_steps(method: str, run_program: RunProgram, trace: Path) -> None:
    script = trace.parent.parent.parent / "ranks.py"
    script.write_text(
        "import multiprocessing, sys, frx_graph\n"
        "def train(rank):\n"
        "    for number in range(5):\n"
        "        with frx_graph.step_context(number):\n"
        "            pass\n"
        "if __name__ == '__main__':\n"
        "    frx_graph.init()\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    ranks = [context.Process(target=train, args=(rank,)) for rank in range(2)]\n"
        "    [rank.start() for rank in ranks]\n"
        "    sys.exit(max(rank.join() or rank.exitcode for rank in ranks))\n"
    )
    ran = run_program(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert (ran.returncode, ran.stderr) == (0, "")
    ends = [(event["pid"], event["step_id"]) for event in lines_in(trace) if event["event_type"] == "step_end"]
    assert len(set(ends)) == len(ends) == 10


def test_workers_of_a_loader_write_nothing(recorded: Recorded) -> None:
    from torch.utils.data import DataLoader

    session = AutopilotSession.from_env()

    class Telling(list[int]):
        def __getitem__(self, index: Any) -> Any:
            with session.span("decode"), frx_graph.step_context(index):
                pass
            session.flush()
            return index

    loader = session.instrument(DataLoader(Telling(range(8)), batch_size=4, num_workers=1))
    for number, _ in enumerate(loader):
        with session.step(number):
            pass
    assert {event["pid"] for event in recorded()} == {os.getpid()}
    assert recorded("phase_span") == []
    assert len(recorded("step_end")) == 2


def test_nothing_begins_before_there_is_an_event(trace: Path) -> None:
    session = frx_graph.init(job_name="early")
    session.flush()
    session.close()
    assert not trace.exists()


def test_writer_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "t.jsonl", max_bytes=10**9)
    writer.put(phase(1))
    writer.close()
    writer.put(phase(2))
    writer.close()
    writer.flush()
    assert len(lines_in(tmp_path / "t.jsonl")) == 1
    assert len(writer.queue) == 0

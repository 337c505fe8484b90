"""Processes that read: what ends one of them is told of one run, and the next run is read by another."""

from __future__ import annotations

import os
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from frx_graph.fleet.messages import Answer, Failure, ReadingTask, ReadRun
from frx_graph.fleet.reader import Reader, filter_environment
from frx_graph.fleet.reader_pool import read_places

Readers = Callable[..., Reader]


def folder(path: Path) -> ReadingTask:
    return ReadingTask(kind="folder", path=str(path), name=path.name)


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if is_reader(child)]


def is_reader(process: psutil.Process) -> bool:
    try:
        return "reader_process" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # Gone, or a zombie that others have left: readers are waited for.
        return False


def test_runs_one_after_the_other_by_one_process(recorded: Path, tmp_path: Path, readers: Readers) -> None:
    reader = readers()
    (tmp_path / "empty").mkdir()
    (first,) = reader.read_task(folder(recorded))
    (before,) = children()
    (second,) = reader.read_task(folder(tmp_path / "empty"))
    assert isinstance(first, ReadRun)
    assert [len(first.rows[table]) for table in ("runs", "labels")] == [1, 9]
    assert isinstance(second, Failure)
    assert second.reason.startswith("holds nothing to analyse")
    assert children() == [before]
    reader.close()
    assert children() == []


def test_it_has_no_credentials(recorded: Path, readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    reader = readers()
    (answer,) = reader.read_task(folder(recorded))
    assert isinstance(answer, ReadRun)
    (child,) = children()
    environment = child.environ()
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert "dummy" not in environment.values()
    assert environment["PATH"] == os.environ["PATH"]


def test_a_run_that_takes_too_long(tmp_path: Path, recorded: Path, readers: Readers) -> None:
    # The limit is one of silence, and holds for the start of a process, too.
    reader = readers(run_seconds=0.01)
    (answer,) = reader.read_task(folder(recorded))
    assert answer == Failure("run-1", "reading it takes longer than 0 s")
    assert children() == []


def test_a_run_that_takes_too_much_memory(tmp_path: Path, recorded: Path, readers: Readers) -> None:
    reader = readers(memory_bytes=150 << 20)
    run = tmp_path / "large"
    (run / "derived").mkdir(parents=True)
    # A string of 50 MB, as large again while it is decoded, and again.
    (run / "derived" / "summary.json").write_text('{"run_id": "' + "\\u00e9" * (9 << 20) + '"}')
    (answer,) = reader.read_task(folder(run))
    assert isinstance(answer, Failure)
    assert "memory" in answer.reason or "reader" in answer.reason
    (answer,) = reader.read_task(folder(recorded))
    assert isinstance(answer, ReadRun)


def test_a_reader_that_is_killed(recorded: Path, readers: Readers) -> None:
    reader = readers()
    list(reader.read_task(folder(recorded)))
    (child,) = children()
    os.kill(child.pid, signal.SIGSTOP)
    found = reader.read_task(folder(recorded))
    os.kill(child.pid, signal.SIGKILL)
    (answer,) = found
    # It was gone before it was asked, or while it was.
    assert isinstance(answer, ReadRun) or "reader was killed" in answer.reason
    assert isinstance(next(iter(reader.read_task(folder(recorded)))), ReadRun)


def test_archive_whose_reader_dies_is_reported_as_a_failure(
    recorded: Path, tmp_path: Path, readers: Readers, zipped: Callable[..., Path]
) -> None:
    reader = readers()
    path = zipped(tmp_path / "many.zip", recorded)
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(200):
            archive.writestr(f"x{number:03d}/gpu_metrics.csv", "timestamp\n")
    answers = reader.read_task(ReadingTask(kind="archive", path=str(path), name="many.zip"))
    first = next(answers)
    assert isinstance(first, ReadRun)
    (child,) = children()
    child.kill()
    last = list(answers)[-1]
    assert isinstance(last, Failure)
    assert last.name == "many.zip"
    assert "which has ended its reader" in last.reason


def test_readers_end_where_no_more_answers_are_wanted(recorded: Path) -> None:
    places = [folder(recorded)] * 1000
    answers = read_places(places, lambda task, reader: reader.read_task(task), [Reader(), Reader()])
    next(answers)
    answers.close()
    assert children() == []


def test_error_of_the_search_ends_all_readers(recorded: Path) -> None:
    def places() -> Iterator[ReadingTask]:
        yield folder(recorded)
        raise OSError("gone")

    answers = read_places(places(), lambda task, reader: reader.read_task(task), [Reader(), Reader()])
    with pytest.raises(OSError, match="gone"):
        list(answers)
    assert children() == []


def test_readers_end_with_their_parent(recorded: Path, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        reader = Reader()
        answers: list[Answer] = list(reader.read_task(folder(recorded)))
        (tmp_path / "pid").write_text(str(children()[0].pid) if answers else "")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    left = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 20
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


NEEDED = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "PYTHONPATH": "/a", "LD_LIBRARY_PATH": "/b", "TMPDIR": "/c"}


def test_its_environment_is_what_is_needed_and_no_more() -> None:
    secret = {
        "AWS_SECRET_ACCESS_KEY": "dummy",
        "AZURE_STORAGE_CONNECTION_STRING": "dummy",
        "FRX_LEDGER": "postgresql://ada:dummy@host/decisions",
        "HTTPS_PROXY": "http://ada:dummy@proxy",
        "PGPASSWORD": "dummy",
        "path": "dummy",
    }
    assert filter_environment({**NEEDED, **secret}) == NEEDED

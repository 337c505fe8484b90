"""One attempt at a job, in a process of its own, as a node makes it: without Ray."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.engines import attempt as attempts
from frx_graph.engines.attempt import Ending, ProcessorPart, Task, hash_trial_code, run_attempt

HERE = Path(__file__).parent
sys.path.append(str(HERE))
from cluster_jobs import Dying, Failing, Staying, Surroundings, Torn  # noqa: E402


@pytest.fixture(autouse=True)
def _jobs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def task(job: object, **given: Any) -> Task:
    return replace(Task("a1", pickle.dumps(job), hash_trial_code(), None, ()), **given)


def surroundings(**given: Any) -> tuple[frozenset[int], str | None, str]:
    answer = run_attempt(task(Surroundings(), **given))
    assert (answer.attempt, answer.ending) == ("a1", Ending.RETURNED), answer.text
    found: tuple[frozenset[int], str | None, str] = pickle.loads(answer.value)
    return found


def test_it_uses_its_part_of_the_processors_and_its_children_do() -> None:
    usable = os.sched_getaffinity(0)
    for number in range(2):
        part = ProcessorPart(number, 2)
        assert surroundings(part=part)[0] == part.select_processors(usable)
    assert surroundings()[0] == usable


def test_attempt_without_gpus_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert surroundings()[1] == ""
    assert surroundings(gpus=True)[1] == "3"


def test_it_runs_in_the_folder(tmp_path: Path) -> None:
    assert surroundings(folder=str(tmp_path))[2] == str(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"folder": "/no/such/folder"}, "it has no folder /no/such/folder"), ({"code": "0" * 16}, "it has other code")],
)
def test_a_node_that_is_not_like_the_others_is_unfit(given: dict[str, str], said: str) -> None:
    answer = run_attempt(task(Surroundings(), **given))
    assert answer.ending is Ending.UNFIT
    assert answer.text.startswith(said)
    assert answer.hint


def test_job_error_message_is_its_answer() -> None:
    answer = run_attempt(task(Failing()))
    assert (answer.ending, answer.text) == (Ending.FAILED, "the program does not run")


def test_a_process_that_is_killed_is_lost(tmp_path: Path) -> None:
    answer = run_attempt(task(Dying(str(tmp_path), 1)))
    assert (answer.ending, answer.text) == (Ending.LOST, "its process was ended by signal 9")


@pytest.mark.parametrize("piece", [b"\x80", b"\x80\x05\x95\x10", b"no pickle", pickle.dumps("no answer")])
def test_an_answer_that_is_not_whole_is_lost(piece: bytes) -> None:
    answer = run_attempt(task(Torn(piece)))
    assert (answer.attempt, answer.ending) == ("a1", Ending.LOST)
    assert answer.text == "its process ended with exit code 0"


def test_answered_attempt_that_does_not_exit_still_returns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attempts, "_UNWINDING_SECONDS", 0.5)
    answer = run_attempt(task(Staying(str(tmp_path))))
    assert (answer.ending, pickle.loads(answer.value)) == (Ending.RETURNED, "said")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_node_is_short_of_at_a_moment_loses_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_more)
    answer = run_attempt(task(Surroundings()))
    assert answer.ending is Ending.LOST
    assert answer.text.startswith("its process cannot be started: BlockingIOError")


def test_a_node_that_may_not_start_a_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        run_attempt(task(Surroundings()))


def alone(processor: int) -> set[int]:
    """On its core, or nobody tells."""
    return {processor}


@given(usable=st.sets(st.integers(0, 500), min_size=1, max_size=60), parts=st.integers(1, 16))
def test_parts_are_alike_and_share_nothing(usable: set[int], parts: int) -> None:
    found = [ProcessorPart(number, parts).select_processors(usable, alone) for number in range(parts)]
    assert {len(part) for part in found} == {max(1, len(usable) // parts)}
    assert all(part <= usable for part in found)
    if len(usable) >= parts:
        assert not any(one & other for one, other in combinations(found, 2))


def test_the_only_part_is_all_of_them() -> None:
    assert ProcessorPart(0, 1).select_processors({4, 5, 9}, alone) == {4, 5, 9}


def test_processors_of_one_core_stay_together() -> None:
    """Four cores, whose second processors are the numbers from 4."""

    def core(processor: int) -> set[int]:
        return {processor % 4, processor % 4 + 4}

    assert ProcessorPart(0, 2).select_processors(range(8), core) == {0, 1, 4, 5}
    assert ProcessorPart(1, 2).select_processors(range(8), core) == {2, 3, 6, 7}


def test_neighbouring_processors_are_taken_if_the_cores_are_unknown() -> None:
    assert ProcessorPart(1, 2).select_processors({0, 1, 6, 7}, alone) == {6, 7}

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from frx_graph.errors import TrialError
from frx_graph.runs.tune.kept_workload import PausableWorkload
from frx_graph.runs.tune.live_arm import ArmEndedError, ArmStart, LiveArm
from frx_graph.trials.schedule import Arm

TINY = str(Path(__file__).with_name("tiny_workload.py"))
SPAWNING = """
import subprocess, sys, time
code = "import time\\nwhile True: time.sleep(0.005)"
child = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
print(child.pid, flush=True)
while True: time.sleep(0.005)
"""


def wait_for(condition, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def state(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"


@pytest.fixture
def spawning(tmp_path):
    workload = PausableWorkload([sys.executable, "-S", "-c", SPAWNING], os.environ, tmp_path)
    child = int(wait_for(lambda: (tmp_path / "stdout.log").read_text()))
    yield workload, child
    workload.end()


def test_pause_and_resume_cover_a_process_that_left_the_session(spawning):
    workload, child = spawning
    workload.pause()
    assert state(workload.pid) == state(child) == psutil.STATUS_STOPPED
    workload.resume()
    assert psutil.STATUS_STOPPED not in (state(workload.pid), state(child))


@pytest.mark.parametrize("stands", [False, True])
def test_nothing_is_left_at_the_end_standing_or_not(spawning, stands):
    workload, child = spawning
    if stands:
        workload.pause()
    workload.end()
    assert state(workload.pid) == state(child) == "gone"


def test_a_workload_that_ends_by_itself_takes_with_it_what_it_has_left_behind(tmp_path):
    code = SPAWNING.rpartition("while True")[0] + "sys.exit(3)"
    workload = PausableWorkload([sys.executable, "-S", "-c", code], os.environ, tmp_path)
    wait_for(workload.has_ended)
    assert workload.exit_code == 3
    child = int((tmp_path / "stdout.log").read_text())
    wait_for(lambda: state(child) == "gone")
    workload.end()


def test_missing_program_is_an_error(tmp_path):
    with pytest.raises(TrialError, match="/no/such/program cannot be started"):
        PausableWorkload(["/no/such/program"], os.environ, tmp_path)


def test_cpu_time_covers_all_processes_and_stops_while_paused(tmp_path):
    busy = PausableWorkload([sys.executable, "-S", "-c", "while True: pass"], os.environ, tmp_path)
    try:
        time.sleep(0.3)
        first = busy.pause()
        time.sleep(0.2)
        second = busy.resume()
        assert first.cpu_seconds > 0.02
        assert second.cpu_seconds == first.cpu_seconds
        assert second.at_ns - first.at_ns >= 0.2e9
    finally:
        busy.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_paused_workload_ends_when_its_holder_is_killed(tmp_path, number):
    holder = f"""
import os, sys, time
from pathlib import Path
from frx_graph.runs.tune.kept_workload import PausableWorkload
workload = PausableWorkload([sys.executable, "-S", "-c", {SPAWNING!r}], os.environ, Path({str(tmp_path)!r}))
while not Path({str(tmp_path)!r}, "stdout.log").read_text(): time.sleep(0.01)
workload.pause()
print(workload.pid, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    child = int((tmp_path / "stdout.log").read_text())
    assert state(pid) == state(child) == psutil.STATUS_STOPPED
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    wait_for(lambda: state(pid) == state(child) == "gone")


def arm(tmp_path, limit: float = 30.0, **variables: str) -> LiveArm:
    start = ArmStart([sys.executable, "-S", TINY], {**os.environ, **variables}, limit, ignore_load=True)
    return LiveArm(Arm.BASELINE, start, tmp_path)


def test_program_is_paused_between_blocks(tmp_path):
    with arm(tmp_path, TINY_MS="4") as living:
        living.warm_up(3)
        read_all_steps = functools.partial(living.run_until, lambda: True)
        read_all_steps()
        seen = len(living.steps)
        time.sleep(0.3)
        read_all_steps()
        assert len(living.steps) == seen
        begin = time.perf_counter()
        blocks = [living.run_block(5) for _ in range(3)]
        elapsed = time.perf_counter() - begin
    assert all(len(block.step_seconds) == 5 for block in blocks)
    assert all(seconds >= 0.004 for block in blocks for seconds in block.step_seconds)
    # The time that it stood is in no block.
    assert sum(block.seconds for block in blocks) <= elapsed
    assert blocks[0].samples == 40


def test_ended_program_reports_its_step_count(tmp_path):
    with arm(tmp_path, TINY_STEPS="6", TINY_EXIT="4") as living:
        with pytest.raises(ArmEndedError, match="exit code 4, after 6 steps") as ended:
            living.warm_up(50)
        assert ended.value.failed


@pytest.mark.integration
def test_a_program_may_run_for_so_long_and_not_longer(tmp_path):
    with arm(tmp_path, limit=2.0, TINY_MS="20") as living:
        living.warm_up(1)
        time.sleep(2.1)  # While it stands no time is used.
        living.run_block(2)
        with pytest.raises(ArmEndedError, match="all it may") as ended:
            living.run_block(500)
        assert not ended.value.failed

"""Other programs' share of the processors, by clocks and a statistics file that the test sets."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from frx_graph.measure.machine.control_groups import read_waited_seconds
from frx_graph.measure.machine.disturbance import (
    DISTURBED_SHARE,
    OthersLoad,
    get_own_seconds,
    list_usable_processors,
    watch_disturbance,
    watch_others_load,
)
from frx_graph.measure.machine.processor_state import read_cpu_throttling

MODULE = "frx_graph.measure.machine.disturbance"
WALL_SECONDS = 10.0
AVAILABLE = WALL_SECONDS * (os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def no_quota_and_whole_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine as most are, unless the test says otherwise."""
    monkeypatch.setattr(f"{MODULE}.read_quota_processors", lambda: None)
    monkeypatch.setattr(f"{MODULE}.add_siblings", lambda processors: processors)


def _write(file: Path, busy_seconds: float) -> None:
    ticks = int(busy_seconds * os.sysconf("SC_CLK_TCK"))
    file.write_text(f"cpu  {ticks} 0 0 12345 6 0 0 0 0 0\ncpu0 1 2 3\n")


@pytest.mark.parametrize("own_share", [0.0, 0.5])
@pytest.mark.parametrize(
    ("others", "disturbed"), [(0.0, False), (0.9 * DISTURBED_SHARE, False), (1.1 * DISTURBED_SHARE, True), (0.5, True)]
)
def test_the_share_of_others_decides(tmp_path: Path, own_share: float, others: float, disturbed: bool) -> None:
    file = tmp_path / "stat"
    _write(file, 100.0)
    wall, own = iter([7.0, 7.0 + WALL_SECONDS]), iter([3.0, 3.0 + own_share * AVAILABLE])
    with watch_disturbance(file, wall_clock=lambda: next(wall), own_clock=lambda: next(own)) as measured:
        _write(file, 100.0 + (own_share + others) * AVAILABLE)
        assert measured() is disturbed


@pytest.mark.parametrize("content", [None, "", "cpu 1 2\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"])
def test_system_without_load_data_is_not_disturbed(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "stat"
    if content is not None:
        file.write_text(content)
    with watch_disturbance(file) as measured:
        assert measured() is False


def test_how_much_and_how_sure(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    _write(file, 100.0)
    processors, tick = os.cpu_count() or 1, 1 / os.sysconf("SC_CLK_TCK")
    wall, own = iter([7.0, 8.0]), iter([3.0, 3.5])
    with watch_others_load(file, wall_clock=lambda: next(wall), own_clock=lambda: next(own)) as load:
        _write(file, 100.75)
        found = load()
    assert found is not None
    assert found == OthersLoad(pytest.approx(0.25, abs=tick), processors, processors * tick)
    assert found.share == pytest.approx(0.25 / processors, abs=tick)


def _write_each(file: Path, busy_seconds: list[float]) -> None:
    ticks = [int(seconds * os.sysconf("SC_CLK_TCK")) for seconds in busy_seconds]
    lines = [f"cpu{number} {busy} 0 0 7 0 0 0 0 0 0" for number, busy in enumerate(ticks)]
    file.write_text("\n".join((f"cpu  {sum(ticks)} 0 0 7 0 0 0 0 0 0", *lines, "intr 1 2 3")))


@pytest.mark.parametrize(("busy", "disturbed"), [([5.0, 9.0], False), ([6.5, 5.0], True)])
def test_only_processors_count_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: list[float], disturbed: bool
) -> None:
    """Held to the first of two; this process has used five of ten seconds of it."""
    monkeypatch.setattr(f"{MODULE}.list_usable_processors", lambda: frozenset({0}))
    file = tmp_path / "stat"
    _write_each(file, [0.0, 0.0])
    wall, own = iter([7.0, 17.0] * 2), iter([3.0, 8.0] * 2)
    with watch_others_load(file, wall_clock=lambda: next(wall), own_clock=lambda: next(own)) as load:
        _write_each(file, busy)
        found = load()
    assert found is not None
    assert found.available == pytest.approx(10.0)
    assert found.used == pytest.approx(busy[0] - 5.0, abs=0.02)
    assert (found.share >= 0.1) is disturbed


def test_a_processor_that_the_system_does_not_list_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.list_usable_processors", lambda: frozenset({0, 9}))
    _write_each(tmp_path / "stat", [1.0, 2.0])
    with watch_others_load(tmp_path / "stat") as load:
        assert load() is None


def test_a_sibling_is_watched_with_the_processor_that_shares_its_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held to the first of three, which shares its core with the second; others are on that one and on the third."""
    monkeypatch.setattr(f"{MODULE}.list_usable_processors", lambda: frozenset({0}))
    monkeypatch.setattr(f"{MODULE}.add_siblings", lambda _: frozenset({0, 1}))
    file = tmp_path / "stat"
    _write_each(file, [0.0, 0.0, 0.0])
    wall, own = iter([7.0, 17.0]), iter([3.0, 8.0])
    with watch_others_load(file, wall_clock=lambda: next(wall), own_clock=lambda: next(own)) as load:
        _write_each(file, [5.0, 8.0, 9.0])
        found = load()
    assert found is not None
    assert (found.used, found.available) == (pytest.approx(8.0, abs=0.03), pytest.approx(20.0))
    assert found.told == "other programs had 40 % of all processors"


@pytest.fixture
def under_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Of the time of half a processor. Writes what its control group tells."""
    own, cgroups = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("0::/\n")
    cgroups.mkdir()
    monkeypatch.setattr(f"{MODULE}.read_quota_processors", lambda: 0.5)
    monkeypatch.setattr(f"{MODULE}.read_waited_seconds", lambda: read_waited_seconds(cgroups, own))
    monkeypatch.setattr(f"{MODULE}.read_cpu_throttling", lambda: read_cpu_throttling(tmp_path, cgroups, own))

    def write(waited: float, throttled: int = 3) -> None:
        total = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited * 1e6:.0f}\nfull avg10=0.00 total=9\n"
        (cgroups / "cpu.pressure").write_text(total)
        (cgroups / "cpu.stat").write_text(f"usage_usec 7\nnr_throttled {throttled}\nthrottled_usec 7\n")

    write(5.0)
    return write


@pytest.mark.parametrize(("waited", "disturbed"), [(0.0, False), (1.9, False), (2.1, True)])
def test_under_a_quota_it_counts_how_long_one_waits(
    tmp_path: Path, under_a_quota: Callable[..., None], waited: float, disturbed: bool
) -> None:
    """Whatever others do on the host."""
    file = tmp_path / "stat"
    _write(file, 0.0)
    wall = iter([7.0, 7.0 + WALL_SECONDS] * 2)
    with watch_others_load(file, wall_clock=lambda: next(wall)) as load:
        _write(file, AVAILABLE)
        under_a_quota(5.0 + waited)
        found = load()
    assert found == OthersLoad(pytest.approx(waited), WALL_SECONDS, 0.0, waited=True)
    assert found.told == f"it waited for processors {10 * waited:.0f} % of the time, within its quota"
    under_a_quota(5.0)
    with watch_disturbance(file, wall_clock=lambda: next(wall)) as measured:
        under_a_quota(5.0 + waited)
        assert measured() is disturbed


def test_waiting_on_an_exhausted_quota_is_not_a_disturbance(tmp_path: Path, under_a_quota: Callable[..., None]) -> None:
    with watch_others_load(tmp_path / "none") as load:
        under_a_quota(50.0, throttled=4)
        assert load() is None


def test_a_quota_for_all_processors_is_none(
    tmp_path: Path, under_a_quota: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.read_quota_processors", lambda: float(os.cpu_count() or 1))
    _write(tmp_path / "stat", 0.0)
    with watch_others_load(tmp_path / "stat") as load:
        found = load()
    assert found is not None
    assert not found.waited


def test_load_is_unknown_under_a_quota_without_pressure_data(
    tmp_path: Path, under_a_quota: Callable[..., None]
) -> None:
    (tmp_path / "cgroup" / "cpu.pressure").unlink()
    _write(tmp_path / "stat", 0.0)
    with watch_others_load(tmp_path / "stat") as load:
        assert load() is None


def test_which_processors_may_be_used_is_that_of_all_threads() -> None:
    """Of a process that is held to one of several, and of one that is not."""
    allowed, processors = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1
    code = "from frx_graph.measure.machine.disturbance import list_usable_processors as u; print(sorted(u() or ()))"
    held = f"import os; os.sched_setaffinity(0, {{{allowed[0]}}}); {code}"
    told = [subprocess.run([sys.executable, "-c", c], capture_output=True, text=True).stdout for c in (code, held)]
    assert told == [f"{each if len(each) < processors else []}\n" for each in (allowed, allowed[:1])]


def test_a_thread_that_ends_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def affinity(thread: int) -> set[int]:
        if thread == 8:
            raise ProcessLookupError
        return {thread - 7}

    for thread in (7, 8, 9):
        (tmp_path / str(thread)).mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert list_usable_processors(tmp_path) == frozenset({0, 2})


def test_how_much_is_unknown(tmp_path: Path) -> None:
    with watch_others_load(tmp_path / "none") as load:
        assert load() is None


SPUN_SECONDS = 0.2


def _spin(ready: Connection) -> None:
    while time.process_time() < SPUN_SECONDS:
        pass
    ready.send(True)
    ready.recv()


def test_worker_counts_as_own_program_while_it_runs_and_after_it_ended() -> None:
    ours, theirs = multiprocessing.Pipe()
    # A fresh interpreter: torch's threads do not survive a fork.
    worker = multiprocessing.get_context("spawn").Process(target=_spin, args=(theirs,))
    begin, own = get_own_seconds(), time.process_time()
    worker.start()
    ours.recv()
    running = get_own_seconds() - begin - (time.process_time() - own)
    ours.send(True)
    worker.join()
    ended = get_own_seconds() - begin - (time.process_time() - own)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert running > SPUN_SECONDS - 2 * tick
    assert ended > running - 2 * tick


def test_a_program_that_runs_beside_is_another() -> None:
    code = f"""
import time
while time.process_time() < {SPUN_SECONDS}: pass
print("done", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        begin, own = get_own_seconds(), time.process_time()
        assert other.stdout is not None
        assert other.stdout.readline() == b"done\n"
        assert get_own_seconds() - begin - (time.process_time() - own) < SPUN_SECONDS / 2
        other.communicate(b"\n")

"""Writers in several processes lose nothing; killed ones lose nothing that they were told is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import ledger_kills
import pytest
import trial_writer

from frx_graph.ledger.database.opening import open_to_read
from frx_graph.ledger.verification import Verification, verify
from frx_graph.support.supervisor.process import extend_pythonpath

HERE = Path(__file__).parent


def write(processes, events, *locations):
    places = [str(location.file or location.url) for location in locations]
    program = [sys.executable, str(HERE / "writer_processes.py"), str(processes), str(events), *places]
    ran = subprocess.run(program, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_eight_writers_make_one_chain_without_a_loss(location):
    acknowledged = write(8, 12, location)
    ledger = open_to_read(location)
    events = ledger.read_events()
    assert len(acknowledged) == 8 * 12
    assert {event.hash for event in events} == set(acknowledged)
    assert [event.position for event in events] == list(range(1, 8 * 12 + 1))
    assert [event.previous for event in events] == ["0" * 64, *(event.hash for event in events[:-1])]
    for number in range(8):
        own = [event.decision.reason for event in events if event.decision.decided_by == f"writer {number}"]
        assert own == [f"event {count}" for count in range(12)]
    assert verify(ledger).problem is None


def test_new_ledgers_that_all_open_at_once_are_made_once(new_location):
    first = new_location()
    locations = [first, *(new_location() for _ in range(5 if first.file else 1))]
    assert len(write(8, 1, *locations)) == 8 * len(locations)
    assert {verify(open_to_read(location)) for location in locations} == {Verification(8, None)}


@pytest.mark.integration
def test_killed_at_random_moments():
    # In a process of its own: the writers are forked from one without threads.
    program = [sys.executable, ledger_kills.__file__, "--kills", "10", "--trials", "2", "--seed", "1"]
    environment = {**os.environ, **extend_pythonpath()}
    ran = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["kills"] == 10
    assert figures["acknowledged"] > 0
    assert figures["stored"] == figures["acknowledged"] + figures["kept_unacknowledged"]
    assert figures["lost"] == 0
    assert figures["broken"] == []
    assert figures["trials_killed"] == 2
    assert figures["arms_left"] == 0


def test_an_arm_that_is_left_would_be_seen(monkeypatch):
    monkeypatch.setattr(trial_writer, "GONE_SECONDS", 0.2)
    mark = "left behind"
    with subprocess.Popen(["sleep", "60"], env={**os.environ, trial_writer.MARK: mark}) as left:
        try:
            # A process has its environment a moment after it has become another program.
            until = time.monotonic() + 10
            while not trial_writer.marked(mark, but=0) and time.monotonic() < until:
                time.sleep(0.01)
            assert trial_writer.marked(mark, but=0) == [left.pid]
            assert trial_writer.marked(mark, but=left.pid) == []
            assert trial_writer.seconds_until_gone(mark) is None
        finally:
            left.kill()
    assert trial_writer.seconds_until_gone(mark) is not None


@pytest.mark.in_a_file
def test_lost_or_broken_events_are_detected(location):
    write(1, 3, location)
    figures = ledger_kills.Figures()
    events = open_to_read(location).read_events()
    told = {(event.position, event.hash) for event in events}
    assert ledger_kills.look(str(location.file), told, figures) == 3
    assert (figures.lost, figures.broken) == (0, [])
    ledger_kills.look(str(location.file), told | {(4, "f" * 64), (3, "f" * 64)}, figures)
    assert figures.lost == 2
    content = location.file.read_bytes()
    assert content.count(b"event 1") == 1
    location.file.write_bytes(content.replace(b"event 1", b"event 9"))
    ledger_kills.look(str(location.file), told, figures)
    assert len(figures.broken) == 1
    assert "event 2" in figures.broken[0]

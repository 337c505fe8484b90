"""A full disk and a folder that cannot be written: a clear error, and what was acknowledged stays."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import Verification, verify

FULL_DISK = """
import json, resource, sys
from datetime import UTC, datetime
from frx_graph.errors import LedgerError
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.database.opening import open_ledger, open_to_read

def limited(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def propose(count):
    return [
        Decision(Kind.PROPOSED, "a" * 16, "b" * 16, f"{count:016x}", "r" * 3000, "ada", "here", 1, datetime.now(UTC))
    ]

def fill(location, limit):
    told, error, kept = [], None, None
    limited(limit)
    try:
        ledger = open_ledger(location, patience_seconds=1)
        for count in range(1000):
            told += [event.hash for event in ledger.append(propose(count))]
    except LedgerError as full:
        error = str(full)
        kept = [event.hash for event in open_to_read(location).read_events()] if told else []
    limited(resource.RLIM_INFINITY)
    later = [event.hash for event in open_ledger(location).append(propose(2000))]
    return told, error, kept, later

print(json.dumps([fill(parse_location(f"{sys.argv[1]}/{limit}"), int(limit)) for limit in sys.argv[2:]]))
"""

READ_ONLY = """
import json, os, sys, tempfile
from datetime import UTC, datetime
from pathlib import Path
from frx_graph.errors import FrxError
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.database.opening import open_ledger, open_to_read

def propose(ledger):
    ledger.append([Decision(Kind.PROPOSED, *("a" * 16,) * 3, "r", "ada", "here", 1, datetime.now(UTC))])

with tempfile.TemporaryDirectory() as folder:  # all that is imported late is imported now
    propose(open_ledger(parse_location(f"{folder}/l")))
    open_to_read(parse_location(f"{folder}/l")).read_events()
if os.geteuid() == 0:  # nothing is read-only to root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
folder = Path(sys.argv[1])
errors = []
for opening in (
    lambda: open_ledger(parse_location(str(folder / "new.sqlite3"))),
    lambda: open_ledger(parse_location(str(folder / "below" / "new.sqlite3"))),
    lambda: propose(open_ledger(parse_location(str(folder / "ledger.sqlite3")))),
):
    try:
        opening()
        errors.append("none")
    except FrxError as error:
        errors.append(str(error))
ledger = open_to_read(parse_location(str(folder / "ledger.sqlite3")))
print(json.dumps([errors, [event.hash for event in ledger.read_events()], sorted(os.listdir(folder))]))
"""


def run(program: str, *arguments: object):
    ran = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_disk_that_fills_up_loses_nothing_acknowledged(tmp_path):
    limits = (0, 3000, 40_000, 120_000)
    results = run(FULL_DISK, tmp_path, *limits)
    for limit, (told, error, kept, later) in zip(limits, results, strict=True):
        location = parse_location(str(tmp_path / str(limit)))
        assert str(location) in error
        assert "full" in error
        assert kept == told
        ledger = open_to_read(location)
        assert [event.hash for event in ledger.read_events()] == told + later
        assert verify(ledger) == Verification(len(told) + 1, None)
    assert not results[0][0]
    assert results[-1][0]


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that others may enter and nobody may write, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        folder.chmod(0o755)


def test_unwritable_folder_is_read_and_reported_as_read_only(closed_folder, decide):
    (event,) = open_ledger(parse_location(str(closed_folder / "ledger.sqlite3"))).append([decide(Kind.PROPOSED)])
    closed_folder.chmod(0o555)
    errors, events, names = run(READ_ONLY, closed_folder)
    assert "cannot be opened" in errors[0]
    assert "cannot be created: Permission denied" in errors[1]
    assert "is read-only" in errors[2]
    assert all(str(closed_folder) in error for error in errors)
    assert events == [event.hash]
    assert names == ["ledger.sqlite3"]

"""Whatever becomes of a connection to PostgreSQL, what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import collections
import contextlib
import enum
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frx_graph.errors import LedgerError, LedgerUncertainError
from frx_graph.ledger import active_plans
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import Location, parse_location
from frx_graph.ledger.verification import Verification, verify

HERE = Path(__file__).parent
LATE_SECONDS = 0.3
EVERY_CLIENT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


class Loss(enum.Enum):
    """What becomes of a COMMIT."""

    NONE = "arrives, and is answered"
    COMMIT = "does not arrive"
    ANSWER = "arrives, and the answer is lost"
    LATE = "arrives a while after who sent it was cut off, and has come again"
    EVERYTHING = "arrives, and from then on nothing comes through"


class Link:
    """A socket in `folder` that leads to the server's; of each COMMIT `losses` says what becomes of it."""

    def __init__(self, folder: Path, server: Path, losses: Callable[[], Loss]) -> None:
        self.folder = folder
        self.lost: collections.Counter[Loss] = collections.Counter()
        self.meanwhile: Callable[[], object] = lambda: None
        """Called when a COMMIT has gone wrong, before who sent it learns that."""
        self._server = server
        self._losses = losses
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / server.name))
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # which wakes up who waits for the next one
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(str(self._server))
            while True:
                for side in select.select([client, server], [], [])[0]:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    loss = self._losses() if side is client and b"COMMIT\0" in data else Loss.NONE
                    if loss is not Loss.NONE:
                        self._lose(loss, client, server, data)
                        return
                    (server if side is client else client).sendall(data)

    def _lose(self, loss: Loss, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self.lost[loss] += 1
        if loss is Loss.LATE:
            client.close()
            time.sleep(LATE_SECONDS)
        if loss is Loss.EVERYTHING:
            self.close()
        if loss is not Loss.COMMIT:
            server.sendall(data)
            server.recv(1 << 16)
        server.close()
        self.meanwhile()


@pytest.fixture
def linked(postgres) -> Iterator[Callable[..., Link]]:
    """Makes links to the server. `losses` are those of the first COMMITs, `then` of the others."""
    with contextlib.ExitStack() as stack:

        def link(*losses: Loss, then: Callable[[], Loss] = lambda: Loss.NONE) -> Link:
            waiting = list(losses)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = Link(folder, postgres.socket, lambda: waiting.pop(0) if waiting else then())
            stack.callback(made.close)
            return made

        yield link


@pytest.fixture
def place(postgres) -> Callable[..., Location]:
    """The one ledger of a test, straight or by way of a link."""
    schema = postgres.new_schema()
    return lambda link=None: parse_location(postgres.url(schema=schema, folder=link and link.folder))


@pytest.fixture
def ledger(place):
    return open_ledger(place())


@pytest.mark.parametrize("loss", [Loss.COMMIT, Loss.ANSWER, Loss.LATE], ids=lambda loss: loss.name.lower())
def test_a_commit_that_is_not_answered(loss, ledger, linked, place, promoted):
    link = linked(Loss.NONE, loss)  # the first COMMIT is that of opening, which only reads
    decisions = promoted()
    recorded = open_ledger(place(link)).append(decisions)
    assert link.lost == {loss: 1}
    assert ledger.read_events() == recorded
    assert [event.decision for event in recorded] == decisions
    assert verify(ledger) == Verification(3, None)


def test_a_ledger_that_is_only_looked_at_is_never_uncertain(ledger, linked, place):
    link = linked(Loss.EVERYTHING)
    with pytest.raises(LedgerError, match="cannot be reached") as error:
        open_ledger(place(link), patience_seconds=0.2)
    assert not isinstance(error.value, LedgerUncertainError)


def test_every_second_answer_is_lost(ledger, linked, place, decide):
    link = linked(Loss.NONE, *[Loss.COMMIT, Loss.ANSWER, Loss.ANSWER, Loss.NONE] * 2)
    by_link = open_ledger(place(link))
    recorded = [event for plan in "1234" for event in by_link.append([decide(Kind.PROPOSED, plan)])]
    assert link.lost == {Loss.ANSWER: 4, Loss.COMMIT: 2}
    assert list(ledger.read_events()) == recorded
    assert verify(ledger) == Verification(4, None)


def test_others_append_before_it_is_known_that_ours_was_kept(ledger, linked, place, promoted):
    link = linked(Loss.NONE, Loss.ANSWER)
    first, second = promoted(), promoted("2")
    link.meanwhile = lambda: ledger.append(second)
    recorded = open_ledger(place(link)).append(first)
    assert [event.position for event in recorded] == [1, 2, 3]
    assert [event.decision for event in ledger.read_events()] == [*first, *second]
    assert verify(ledger) == Verification(6, None)


def test_others_append_before_it_is_known_that_ours_was_not_kept(ledger, linked, place, decide, promoted):
    ledger.append(promoted())
    link = linked(Loss.NONE, Loss.COMMIT)
    link.meanwhile = lambda: ledger.append([decide(Kind.ROLLED_BACK)])
    with pytest.raises(LedgerError, match="is rolled back since event 4"):
        open_ledger(place(link)).append([decide(Kind.APPLIED)])
    assert ledger.count_events() == 4


def test_a_server_that_does_not_come_back(ledger, linked, place, decide):
    link = linked(Loss.NONE, Loss.EVERYTHING)
    by_link = open_ledger(place(link), patience_seconds=0.2)
    with pytest.raises(LedgerUncertainError, match=r"cannot be reached.*not known whether the append succeeded"):
        by_link.append([decide(Kind.PROPOSED)])
    assert ledger.count_events() == 1
    with pytest.raises(LedgerError, match="cannot be reached") as error:
        by_link.append([decide(Kind.PROPOSED)])
    assert not isinstance(error.value, LedgerUncertainError)
    with pytest.raises(LedgerError, match="cannot be reached"):
        open_to_read(place(link))
    assert ledger.count_events() == 1


def test_append_survives_a_backend_terminated_midway(ledger, postgres, decide, monkeypatch):
    record, ended = active_plans.record_event, []

    def end_it_once(*given):
        if not ended:
            ended.append(True)
            postgres.execute(EVERY_CLIENT)
        return record(*given)

    monkeypatch.setattr(active_plans, "record_event", end_it_once)
    (event,) = ledger.append([decide(Kind.PROPOSED)])
    assert ended
    assert ledger.read_events() == (event,)


@pytest.mark.integration
def test_16_writers_a_crash_and_lost_connections(ledger, linked, place, postgres):
    """While they write, every tenth COMMIT or its answer is lost, backends are ended, and the server crashes."""
    postgres.crash()
    postgres.start(durable=True)
    draw = random.Random(1)
    link = linked(then=lambda: draw.choice([Loss.COMMIT, Loss.ANSWER]) if draw.random() < 0.1 else Loss.NONE)
    writers, events = 16, 6
    program = [sys.executable, str(HERE / "writer_processes.py"), str(writers), str(events), str(place(link).url)]
    acknowledged = []
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            for line in process.stdout:
                acknowledged.append(line.strip())
                if len(acknowledged) % 16 == 8:
                    postgres.execute(EVERY_CLIENT)
                if len(acknowledged) == writers * events // 2:
                    postgres.crash()
                    postgres.start(durable=True)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == 0
    assert link.lost[Loss.COMMIT]
    assert link.lost[Loss.ANSWER]
    stored = ledger.read_events()
    assert len(acknowledged) == writers * events
    assert {event.hash for event in stored} == set(acknowledged)
    every = {(f"writer {number}", f"event {count}") for number in range(writers) for count in range(events)}
    assert collections.Counter((event.decision.decided_by, event.decision.reason) for event in stored) == dict.fromkeys(
        every, 1
    )
    assert verify(ledger) == Verification(writers * events, None)

"""Implement one rank's part in an agreement: offer or receive a plan, vote on it, and acknowledge the result.

A store may be older than the ranks: a launcher such as `torchrun` keeps it over restarts, with earlier decisions. So an
offer names a `life`, and votes belong to that life.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psutil

from frx_graph.distributed.registers import Answer, Registers, Verdict, call_with_timeout

if TYPE_CHECKING:
    from frx_graph.support.torch_internals import Store

GRACE_SECONDS = 5.0
"""Time that the store has to answer beyond a rank's own. A `FileStore` notices a timeout up to a second late."""

_OFFERED, _VALIDATED, _ACKNOWLEDGED = "offered", "validated", "acknowledged"
_MAX_MISSING = 16
"""Most silent ranks that are named. Finding each takes some messages."""
_POLL_SECONDS = 0.05
"""Seconds between reads of an offer of an earlier life: a store reports that a key exists, not that it changed."""
_START_PRECISION_SECONDS = 1.0
"""psutil derives a process's start from the machine's, which Linux gives in whole seconds (proc(5), btime)."""


class EarlierLifeError(Exception):
    """An offer was made by processes that have ended."""


class Voter:
    """One rank in one agreement. Methods that use the store raise what it raises."""

    def __init__(self, ranks: Sequence[int], rank: int, seconds: float, connect: Callable[[], Store]) -> None:
        """Vote as `rank` of `ranks` within `seconds`, through the store that `connect` returns."""
        self.ranks = tuple(ranks)
        self.rank = rank
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._registers = Registers(connect)
        self._acknowledged = False
        self._own_vote = secrets.token_hex(8)
        self._started = psutil.Process().create_time()
        self._life = ""
        self._ended_lives: set[str] = set()

    def call(self, ask: Callable[[], Answer]) -> Answer:
        """Return what `ask` returns; raise `TimeoutError` if it takes `GRACE_SECONDS` beyond this rank's time."""
        return call_with_timeout(ask, max(0.0, self._count_seconds_left()) + GRACE_SECONDS)

    def give_up(self) -> bool:
        """Use the store no more; return whether it is certain that no rank applies the plan."""
        # First close, then read: `vote` does both in the other order, so that one of the two sees the other.
        self._registers.close()
        return not self._acknowledged

    def interrupt(self) -> None:
        """Refuse in all registers, if the store answers at once, and give up."""
        self._registers.reconnect()
        verdict = Verdict(False, f"rank {self.rank} was interrupted", (self.rank,))

        def refuse() -> None:
            self._life = self._registers.settle(_OFFERED, verdict).life
            for register in (_VALIDATED, _ACKNOWLEDGED):
                self._registers.settle(self._format_key(register), verdict)

        with contextlib.suppress(Exception):
            call_with_timeout(refuse, GRACE_SECONDS)
        self._registers.close()

    def offer(self, verdict: Verdict) -> Verdict:
        """Offer `verdict`, and return it, or the refusal of a rank whose time was up before."""
        found = self._registers.settle(_OFFERED, verdict)
        # Only this rank offers a plan: another offer was made by an earlier process.
        if self._has_ended(found) or (found.yes and found != verdict):
            found = self._registers.settle(_OFFERED, verdict, instead_of=found)
        self._life = found.life
        return found

    def receive_offer(self) -> Verdict:
        """Return the first rank's offer in this life: one that was written before this process began is of an earlier
        life. If clocks differ, this may be wrong either way; then this rank's time passes, and there is no plan. A rank
        that finds its own vote cast knows that the life has ended. If none does, all that vote now have lived since the
        offer."""
        found = self.await_verdict(_OFFERED)
        while self._has_ended(found):
            if self._count_seconds_left() <= 0:
                found = self._registers.settle(_OFFERED, self._decide_late(_OFFERED), instead_of=found)
                break
            time.sleep(_POLL_SECONDS)
            found = self._registers.read(_OFFERED)
        self._life = found.life
        return found

    def vote(self, objection: str | None) -> Verdict:
        """Return the verdict on the plan, with this rank's vote: if all find it valid, whether all have read that.
        Raises `EarlierLifeError` if an earlier process has cast this vote."""
        late = objection is None and self._count_seconds_left() < 0
        if late:
            objection = f"needed longer than {self._seconds:g} s"
        if objection is not None:
            refusal = Verdict(False, f"rank {self.rank}: {objection}", (self.rank,), late)
            found = self._registers.settle(self._format_key(_VALIDATED), refusal)
            if found.yes:
                raise self._end_life()
            return found
        found = self.collect_votes(_VALIDATED)
        if not found.yes:
            return found
        self._acknowledged = True
        return self.collect_votes(_ACKNOWLEDGED)

    def collect_votes(self, register: str) -> Verdict:
        """Vote yes, and return the verdict, which the last rank to vote settles."""
        store = self._registers.store
        cast = store.compare_set(self._format_vote_key(register, self.rank), "", self._own_vote)
        if cast != self._own_vote.encode():
            raise self._end_life()
        if store.add(f"{self._format_key(register)}/votes", 1) == len(self.ranks):
            return self._registers.settle(self._format_key(register), self._accept())
        return self.await_verdict(register)

    def await_verdict(self, register: str) -> Verdict:
        """Return the verdict; settle it if no rank has when this rank's time is up."""
        try:
            self._registers.wait(self._format_key(register), max(0.001, self._count_seconds_left()))
        except RuntimeError:
            # Stores raise different errors, alike for a timeout and a lost connection. The next request tells.
            return self._registers.settle(self._format_key(register), self._decide_late(register))
        return self._registers.read(self._format_key(register))

    def _has_ended(self, offered: Verdict) -> bool:
        return offered.life in self._ended_lives or offered.written < self._started - _START_PRECISION_SECONDS

    def _end_life(self) -> EarlierLifeError:
        self._ended_lives.add(self._life)
        return EarlierLifeError()

    def _accept(self) -> Verdict:
        return Verdict(True, f"all {len(self.ranks)} ranks agree")

    def _decide_late(self, register: str) -> Verdict:
        ranks = self.ranks[:1] if register == _OFFERED else self._find_missing(register)
        if not ranks:
            return self._accept()
        names = ", ".join(map(str, ranks))
        return Verdict(False, f"rank {names} has not {register} a plan within {self._seconds:g} s", ranks, silent=True)

    def _find_missing(self, register: str) -> tuple[int, ...]:
        # By bisection: most often a single rank is missing.
        found: list[int] = []
        halves = [self.ranks]
        while halves and len(found) < _MAX_MISSING:
            some = halves.pop()
            if self._registers.have_voted([self._format_vote_key(register, rank) for rank in some]):
                continue
            if len(some) == 1:
                found.append(some[0])
            else:
                middle = len(some) // 2
                halves += [some[middle:], some[:middle]]
        return tuple(found)

    def _format_key(self, register: str) -> str:
        return register if register == _OFFERED else f"{self._life}/{register}"

    def _format_vote_key(self, register: str, rank: int) -> str:
        return f"{self._format_key(register)}/{rank}"

    def _count_seconds_left(self) -> float:
        return self._deadline - time.monotonic()

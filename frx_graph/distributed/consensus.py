"""One plan for all ranks under `torch.distributed`, or none for any of them.

How: no collective. The ranks write and read values in the store that the process group was set up with, through a
connection of their own. A decision is a register, which is written once (an atomic compare-and-set): whoever wants to
decide otherwise later, since its time is up, reads what was decided. Three of them, in this order, all or none in each:

    offered        the first rank's plan, or why there is none
    validated      that all ranks have found it valid, or who did not, and why
    acknowledged   that all ranks have read that, and so were alive then

A store may be older than the ranks: a launcher such as `torchrun` keeps it when it starts them anew, and so what they
had decided before. An offer carries the name of a life, and the other two registers are of that life; how a rank tells
that one has passed is said at `_Talk.offered`.

Why not a collective: those of the default group block for as long as that was told to, half an hour as a rule, NCCL's
end the process then, and are matched by their order, so that one of ours would be taken for one of the program's on a
rank that compiles something else. A second group has to be made by all ranks, too. Neither can be left by a rank alone,
a register can. Inside of a compiler a collective would also run on fake tensors.

What is promised, and what cannot be, says docs/distributed.md.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import psutil
from torch import distributed as dist

from frx_graph.errors import first_line

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

GRACE_SECONDS = 5.0
"""How much longer than its time a rank waits for the store to answer. A `FileStore` sees a second too late
that its time is up."""

_PREFIX = "frx_graph/agreement/3"
"""Of all keys. The number is the protocol's: ranks that speak another one do not answer."""
_OFFERED, _VALIDATED, _ACKNOWLEDGED = "offered", "validated", "acknowledged"
_MOST_BYTES = 4 * 2**20
"""Of a plan. A `TCPStore` hangs up on who sends it more than 8 MiB."""
_MOST_MISSING = 16
"""Ranks that are named of those that did not answer. Each takes some messages to find."""

_LOOK_AGAIN_SECONDS = 0.05
"""Between looks at an offer of an earlier life: a store tells that a key is there, not that it has changed."""
_START_IS_EXACT_TO = 1.0
"""Seconds: psutil reckons a process's start from the machine's, which Linux gives in whole ones (proc(5), btime)."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Agreement:
    """What has come of a proposal. `plan` is what every rank applies from now on, None the baseline, for which `reason`
    says why and `dissenters` whose doing it was (ranks of the default group; of many that were silent the first 16).
    `silent`: somebody has not answered in time, so that to ask again may be to wait again. Not `certain`: the store was
    lost, and whether others have agreed cannot be known here."""

    plan: bytes | None
    reason: str
    dissenters: tuple[int, ...] = ()
    silent: bool = False
    certain: bool = True


def agree(
    proposal: Callable[[], bytes | None],
    valid: Callable[[bytes], str | None],
    *,
    about: str,
    seconds: float,
    group: dist.ProcessGroup | None = None,
) -> Agreement:
    """What all ranks of `group` (the default: all) say to what its first rank proposes about `about`.

    Every rank of the group has to call it for the same `about`, a graph's signature say, as many times. `proposal` is
    called on the first rank, None for nothing; `valid` on all, and says what is wrong with a plan. What either raises
    is a dissent; `KeyboardInterrupt` and `SystemExit` are that, too, and go on. Both run in the calling thread, and
    cannot be interrupted. Beside their time this takes `seconds` at most, and twice `GRACE_SECONDS` where the store is
    silent. A lost store raises nothing. Without other ranks it returns at once.
    """
    ranks = _ranks(group)
    if len(ranks) < 2:
        return _alone(proposal, valid)
    rank = dist.get_rank()
    if rank not in ranks:
        return Agreement(None, f"rank {rank} is not of the group that was asked")
    talk = _Talk(ranks, rank, seconds, _connecting(ranks, about))
    try:
        return _agreed(talk, proposal, valid)
    except Exception as error:  # noqa: BLE001 - whatever a store raises: its own errors are not the only ones
        return talk.lost(error)
    except BaseException:
        talk.interrupted()
        raise


def _agreed(talk: _Talk, proposal: Callable[[], bytes | None], valid: Callable[[bytes], str | None]) -> Agreement:
    offer = _offer(proposal, talk.rank) if talk.is_first() else None
    while True:
        offered = talk.asking(talk.offered if offer is None else partial(talk.offer, offer))
        plan = offered.plan()
        if plan is None:
            return Agreement(None, offered.why, offered.ranks, offered.silent)
        objection = _objection(valid, plan)
        try:
            decided = talk.asking(partial(talk.decide, objection))
        except _EarlierLifeError:
            continue
        return Agreement(plan if decided.yes else None, decided.why, decided.ranks, decided.silent)


class _EarlierLifeError(Exception):
    """What was offered is of processes that are no more."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The content of a register. `offer` is the plan, in base 64; `life` and `written` (seconds of the writer's clock)
    count in an offer."""

    yes: bool
    why: str
    ranks: tuple[int, ...] = ()
    silent: bool = False
    offer: str | None = None
    life: str = field(default_factory=partial(secrets.token_hex, 8))
    written: float = field(default_factory=time.time)

    def plan(self) -> bytes | None:
        return base64.b64decode(self.offer) if self.yes and self.offer is not None else None

    def text(self) -> str:
        return json.dumps(asdict(self))


def _read(text: bytes) -> _Verdict:
    found = json.loads(text)
    return _Verdict(**{**found, "ranks": tuple(found["ranks"])})


class _Talk:
    """The conversation of one rank with the others."""

    def __init__(self, ranks: Sequence[int], rank: int, seconds: float, connect: Callable[[], Store]) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._connect = connect
        self._connection: Store | None = None
        self._given_up = False
        self._acknowledged = False
        self._own_vote = secrets.token_hex(8)
        self._started = psutil.Process().create_time()
        self._life = ""
        self._passed: set[str] = set()

    def is_first(self) -> bool:
        """Whether it is this rank that offers."""
        return self.rank == self.ranks[0]

    def asking(self, ask: Callable[[], Answer], seconds: float | None = None) -> Answer:
        """What `ask` answers. Raises what it raises, and `TimeoutError` where it takes longer than `seconds`, by
        default until the store has had its time: a store whose machine has gone silent answers nothing, ever, and
        cannot be interrupted."""
        answers: list[Answer] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(ask())
            except BaseException as error:  # noqa: BLE001 - raised again by whoever asks
                errors.append(error)

        thread = threading.Thread(target=run, name="frx-agreement", daemon=True)
        thread.start()
        thread.join(max(0.0, self._remaining()) + GRACE_SECONDS if seconds is None else seconds)
        if errors:
            raise errors[0]
        if not answers:
            raise TimeoutError("the store does not answer")
        return answers[0]

    def lost(self, error: Exception) -> Agreement:
        """What is left to say without a store. Who has not acknowledged knows that nobody applies the plan."""
        # In this order, and the other way round where it acknowledges: one of the two sees the other.
        self._given_up = True
        why = f"rank {self.rank} has lost the others: {first_line(error)}"
        return Agreement(None, why, (self.rank,), silent=True, certain=not self._acknowledged)

    def interrupted(self) -> None:
        """Tell the others, if that can be done at once."""
        # The other connection may be waiting.
        self._connection = None
        verdict = _Verdict(False, f"rank {self.rank} was interrupted", (self.rank,))

        def tell() -> None:
            self._life = self.settle(_OFFERED, verdict).life
            for register in (_VALIDATED, _ACKNOWLEDGED):
                self.settle(register, verdict)

        with contextlib.suppress(Exception):
            self.asking(tell, GRACE_SECONDS)
        self._given_up = True

    def offer(self, verdict: _Verdict) -> _Verdict:
        """What was offered: `verdict`, unless the others' time was up before."""
        found = self.settle(_OFFERED, verdict)
        # Only this rank says yes here: it said so in another process.
        if self._has_passed(found) or (found.yes and found != verdict):
            found = self.settle(_OFFERED, verdict, instead_of=found)
        self._life = found.life
        return found

    def offered(self) -> _Verdict:
        """What the first rank offers in this life.

        An offer that was written before this process began is of an earlier one. If clocks differ, that is not seen, or
        seen where it is not so; then it takes this rank's time, and no plan comes of it. Nothing worse does: who finds
        its own vote cast knows that life to have passed, and only if nobody does, all who vote now have not died since.
        """
        found = self.outcome(_OFFERED)
        while self._has_passed(found):
            if self._remaining() <= 0:
                found = self.settle(_OFFERED, self._in_the_end(_OFFERED), instead_of=found)
                break
            time.sleep(_LOOK_AGAIN_SECONDS)
            found = _read(self._store().get(_OFFERED))
        self._life = found.life
        return found

    def _has_passed(self, offered: _Verdict) -> bool:
        return offered.life in self._passed or offered.written < self._started - _START_IS_EXACT_TO

    def decide(self, objection: str | None) -> _Verdict:
        """What comes of it when this rank has looked at the plan. Only if all say yes, it asks who has heard that."""
        late = objection is None and self._remaining() < 0
        if late:
            objection = f"needed longer than {self._seconds:g} s"
        if objection is not None:
            found = self.settle(_VALIDATED, _Verdict(False, f"rank {self.rank}: {objection}", (self.rank,), late))
            if found.yes:
                raise self._passed_away()
            return found
        found = self._all_say(_VALIDATED)
        if not found.yes:
            return found
        self._acknowledged = True
        return self._all_say(_ACKNOWLEDGED)

    def _passed_away(self) -> _EarlierLifeError:
        """That this rank has answered, and it was not this process."""
        self._passed.add(self._life)
        return _EarlierLifeError()

    def outcome(self, register: str) -> _Verdict:
        """What was decided, by this rank if nobody has when its time is up."""
        try:
            self._store().wait([self._key(register)], timedelta(seconds=max(0.001, self._remaining())))
        except RuntimeError:
            # What stores raise differs, for a timeout as for a lost connection. The next question tells.
            return self.settle(register, self._in_the_end(register))
        return _read(self._store().get(self._key(register)))

    def settle(self, register: str, verdict: _Verdict, *, instead_of: _Verdict | None = None) -> _Verdict:
        """What was decided; `verdict`, if nothing was, or what `instead_of` says."""
        key, text = self._key(register), verdict.text()
        found = self._store().compare_set(key, "" if instead_of is None else instead_of.text(), text)
        if found == text.encode():
            # Without libuv a `TCPStore` wakes nobody for what is written by `compare_set`. It stays what it is.
            self._store().set(key, text)
        return _read(found)

    def _all_say(self, register: str) -> _Verdict:
        store = self._store()
        if store.compare_set(self._vote(register, self.rank), "", self._own_vote) != self._own_vote.encode():
            raise self._passed_away()
        if store.add(f"{self._key(register)}/votes", 1) == len(self.ranks):
            return self.settle(register, self._all_agree())
        return self.outcome(register)

    def _all_agree(self) -> _Verdict:
        return _Verdict(True, f"all {len(self.ranks)} ranks agree")

    def _in_the_end(self, register: str) -> _Verdict:
        """What this rank decides when its time is up: who is silent, if that is still so."""
        ranks = self.ranks[:1] if register == _OFFERED else self._missing(register)
        if not ranks:
            return self._all_agree()
        names = ", ".join(map(str, ranks))
        return _Verdict(False, f"rank {names} has not {register} a plan within {self._seconds:g} s", ranks, silent=True)

    def _missing(self, register: str) -> tuple[int, ...]:
        """The first ranks without a vote, found by halves: most often there is one."""
        found: list[int] = []
        halves = [self.ranks]
        while halves and len(found) < _MOST_MISSING:
            some = halves.pop()
            if self._store().check([self._vote(register, rank) for rank in some]):
                continue
            if len(some) == 1:
                found.append(some[0])
            else:
                middle = len(some) // 2
                halves += [some[middle:], some[:middle]]
        return tuple(found)

    def _store(self) -> Store:
        if self._given_up:
            raise TimeoutError("this rank has given up")
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _key(self, register: str) -> str:
        return register if register == _OFFERED else f"{self._life}/{register}"

    def _vote(self, register: str, rank: int) -> str:
        return f"{self._key(register)}/{rank}"

    def _remaining(self) -> float:
        return self._deadline - time.monotonic()


def _ranks(group: dist.ProcessGroup | None) -> list[int]:
    if not dist.is_available() or not dist.is_initialized():
        return []
    return dist.get_process_group_ranks(group)


_counts: WeakKeyDictionary[dist.ProcessGroup, Counter[str]] = WeakKeyDictionary()
"""How often something was asked, by the default group: another one has another store."""
_counting = threading.Lock()


def _connecting(ranks: Sequence[int], about: str) -> Callable[[], Store]:
    """Makes a connection to the store of one's own, since the program's is locked for as long as somebody waits in it.
    Its keys are equal on all ranks of one agreement, and of no other: a group is its ranks, its name is each process's
    own matter."""
    # Not every build of torch has it.
    from torch._C._distributed_c10d import PrefixStore

    store, world = dist.distributed_c10d._get_default_store(), dist.group.WORLD
    assert world is not None
    name = hashlib.sha256(json.dumps([*ranks, about]).encode()).hexdigest()[:32]
    with _counting:
        counts = _counts.setdefault(world, Counter())
        counts[name] += 1
        keys = f"{_PREFIX}/{name}/{counts[name]}"
    # Torch 2.13 has `clone`, and does not declare it.
    prefixed: Any = PrefixStore(keys, store)
    return lambda: prefixed.clone()


def _alone(proposal: Callable[[], bytes | None], valid: Callable[[bytes], str | None]) -> Agreement:
    offered = _offer(proposal, 0)
    plan = offered.plan()
    if plan is None:
        return Agreement(None, offered.why, offered.ranks)
    objection = _objection(valid, plan)
    return Agreement(plan, "there are no other ranks") if objection is None else Agreement(None, objection, (0,))


def _offer(proposal: Callable[[], bytes | None], rank: int) -> _Verdict:
    try:
        plan = proposal()
    except Exception as error:  # noqa: BLE001 - told to all
        return _Verdict(False, f"rank {rank}: {first_line(error)}", (rank,))
    if plan is None:
        return _Verdict(False, "nothing was proposed")
    if len(plan) > _MOST_BYTES:
        return _Verdict(False, f"rank {rank}: the plan has {len(plan)} bytes, and may have {_MOST_BYTES}", (rank,))
    return _Verdict(True, "", offer=base64.b64encode(plan).decode())


def _objection(valid: Callable[[bytes], str | None], plan: bytes) -> str | None:
    try:
        return valid(plan)
    except Exception as error:  # noqa: BLE001 - told to all
        return first_line(error)

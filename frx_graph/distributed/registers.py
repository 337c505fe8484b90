"""Write-once registers in the store of a process group, through their own connection."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from torch import distributed as dist

from frx_graph.support.torch_internals import get_default_store

if TYPE_CHECKING:
    from frx_graph.support.torch_internals import Store

_PREFIX = "frx_graph/agreement/3"
"""Prefix of all keys. The number is the protocol's: ranks with another protocol do not answer."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of a register: a decision, why it was made, and the ranks that caused a refusal.

    `silent`: a rank has not answered in time. An offer also has the plan, in base64, a `life` (a random name), and when
    it was `written`, in seconds of the writer's clock.
    """

    yes: bool
    why: str
    ranks: tuple[int, ...] = ()
    silent: bool = False
    offer: str | None = None
    life: str = field(default_factory=partial(secrets.token_hex, 8))
    written: float = field(default_factory=time.time)

    def decode_plan(self) -> bytes | None:
        """Return the plan that is offered, or None."""
        return base64.b64decode(self.offer) if self.yes and self.offer is not None else None

    def encode(self) -> str:
        """Return the text that the store keeps."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: bytes) -> Verdict:
        """Return the verdict that the store keeps as `text`."""
        found = json.loads(text)
        return Verdict(**{**found, "ranks": tuple(found["ranks"])})


class Registers:
    """Read and write the registers of one agreement. Every method raises what the store raises."""

    def __init__(self, connect: Callable[[], Store]) -> None:
        """Connect by `connect` when a register is first used."""
        self._connect = connect
        self._connection: Store | None = None
        self._closed = False

    def close(self) -> None:
        """Raise `TimeoutError` from now on, also in another thread."""
        self._closed = True

    def reconnect(self) -> None:
        """Use a new connection from now on; another thread may be waiting in the old one."""
        self._connection = None

    def settle(self, key: str, verdict: Verdict, *, instead_of: Verdict | None = None) -> Verdict:
        """Write `verdict` unless the register has another content than `instead_of`; return the content."""
        text = verdict.encode()
        found = self.store.compare_set(key, "" if instead_of is None else instead_of.encode(), text)
        if found == text.encode():
            # Without libuv, a `TCPStore` wakes no waiters for what `compare_set` writes. The content stays the same.
            self.store.set(key, text)
        return Verdict.decode(found)

    def wait(self, key: str, seconds: float) -> None:
        """Wait until the register is written; raise `RuntimeError` if it is not, or the connection is lost."""
        self.store.wait([key], timedelta(seconds=seconds))

    def read(self, key: str) -> Verdict:
        """Return the content of a register that is written."""
        return Verdict.decode(self.store.get(key))

    def have_voted(self, keys: Sequence[str]) -> bool:
        """Return whether votes were cast under all of the keys."""
        return bool(self.store.check(list(keys)))

    @property
    def store(self) -> Store:
        """The connected store."""
        if self._closed:
            raise TimeoutError("this rank has given up")
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


def call_with_timeout(call: Callable[[], Answer], seconds: float) -> Answer:
    """Return what `call` returns, or raise what it raises; raise `TimeoutError` after `seconds`. It runs in a thread,
    since a store on a silent machine never answers."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            answer.set_exception(error)

    threading.Thread(target=run, name="frx-agreement", daemon=True).start()
    if not wait([answer], seconds).done:
        raise TimeoutError("the store does not answer")
    return answer.result()


_counts: WeakKeyDictionary[dist.ProcessGroup, Counter[str]] = WeakKeyDictionary()
"""Number of agreements with the same key, by default group: another one has another store."""
_counting = threading.Lock()


def connect_later(ranks: Sequence[int], topic: str) -> Callable[[], Store]:
    """Return a function that connects to the store of the default process group.

    The program's own connection is locked while any thread waits in it. All ranks of one agreement get the same keys,
    and no other agreement does.
    """
    # Not every build of torch has it.
    from frx_graph.support.torch_internals import PrefixStore

    store, world = get_default_store(), dist.group.WORLD
    assert world is not None
    name = hashlib.sha256(json.dumps([*ranks, topic]).encode()).hexdigest()[:32]
    with _counting:
        counts = _counts.setdefault(world, Counter())
        counts[name] += 1
        keys = f"{_PREFIX}/{name}/{counts[name]}"
    # Torch 2.13 has `clone`, and does not declare it.
    prefixed: Any = PrefixStore(keys, store)
    return lambda: prefixed.clone()

"""What an engine asks of a cluster, so that how trials are spread can be tested without one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from frx_graph.engines.attempt import Answer, ProcessorPart, Task


@dataclass(frozen=True, slots=True)
class Node:
    """One that is alive, and what it has in all."""

    id: str
    address: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a node that one trial has for itself: processors, GPUs, and how much of the one slot in which the node
    measures."""

    cpus: float
    gpus: float
    slot: float
    part: ProcessorPart | None = None
    """Which of the node's processors it is; None: all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A share that was asked for: ours from when the cluster has said so until it is released. `handle` is the
    cluster's."""

    node: Node
    share: Share
    handle: Any


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A task that was started. `handle` is the cluster's."""

    reservation: Reservation
    handle: Any


class LostError(Exception):
    """An attempt has come to nothing, for its node, its process, or somebody who has cancelled it: another may not."""


class UnfitError(Exception):
    """An attempt did not begin, for something about its node. `hint` says what would change that."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Cluster(Protocol):
    """Of nodes that come and go."""

    def nodes(self) -> tuple[Node, ...]:
        """Those that are alive."""

    def reserve(self, node: Node, share: Share) -> Reservation:
        """Ask for a share of this node, and of no other."""

    def start(self, reservation: Reservation, task: Task) -> Running:
        """In what was reserved. Never twice by itself."""

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        """Which reservations are ours now, and which tasks have ended, as soon as there is one, or after `seconds`."""

    def answer(self, running: Running) -> Answer:
        """Of a task that has ended. Raises `LostError` and `UnfitError`."""

    def cancel(self, running: Collection[Running]) -> None:
        """End them; returns when their processes are gone, or nobody can tell."""

    def release(self, reservation: Reservation) -> None:
        """Give back a share, or no longer ask for it."""

"""Define the interface of a cluster, so that engines can be tested without one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from frx_graph.engines.attempt import Answer, ProcessorPart, Task


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive, and its total resources."""

    id: str
    address: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Share:
    """The processors, GPUs and share of a node's one measuring slot that one trial uses exclusively."""

    cpus: float
    gpus: float
    slot: float
    part: ProcessorPart | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A share that was asked for, held from when the cluster grants it until its release. `handle` is the cluster's."""

    node: Node
    share: Share
    handle: Any


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A task that was started for the attempt with this id. `handle` is the cluster's."""

    reservation: Reservation
    handle: Any
    attempt: str


class Cluster(Protocol):
    """A cluster of nodes that come and go."""

    def list_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that are alive."""

    def reserve(self, node: Node, share: Share) -> Reservation:
        """Ask for a share of this node, and of no other."""

    def start(self, reservation: Reservation, task: Task) -> Running:
        """Start a task in its reservation. It is never started twice."""

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        """Return the reservations that were granted and the tasks that have ended, within `seconds`."""

    def get_answer(self, running: Running) -> Answer:
        """Return the answer of a task that has ended: LOST if its node, its process or a cancellation ended it, UNFIT
        if the node cannot run it."""

    def cancel(self, running: Collection[Running]) -> None:
        """End tasks; return when their processes are gone, or unreachable."""

    def release(self, reservation: Reservation) -> None:
        """Give back a share, or no longer ask for it."""

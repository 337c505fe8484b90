"""Reserve the places of a cluster where a trial can measure alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from frx_graph.engines.attempt import ProcessorPart
from frx_graph.engines.cluster import Cluster, Node, Reservation, Share
from frx_graph.engines.engine import Holding


class MeasuringSlots:
    """Reserves a place on every node that has one, since any of them may be free first."""

    def __init__(self, cluster: Cluster, holding: Holding) -> None:
        self._cluster = cluster
        self._holding = holding
        self.asked: list[Reservation] = []
        """Reservations that were not granted yet."""
        self.free: list[Reservation] = []
        self.busy: set[Reservation] = set()
        self.unfit: dict[str, str] = {}
        """Nodes that get no more attempts, by id, each with the reason."""

    @property
    def all(self) -> tuple[Reservation, ...]:
        """All reservations, requested or granted."""
        return (*self.asked, *self.free, *self.busy)

    def reserve_nodes(self, nodes: Collection[Node]) -> bool:
        """Reserve places on nodes that are new or whose places were lost, and forget nodes that have gone. Return False
        if no node has a place."""
        fit = {node.id: node for node in nodes if node.id not in self.unfit}
        for reservation in self.all:
            if reservation.node.id not in fit and reservation not in self.busy:
                self._give_back(reservation)
        known = {(reservation.node.id, reservation.share.part) for reservation in self.all}
        for node in fit.values():
            self.asked += [
                self._cluster.reserve(node, share)
                for share in divide_node(node, self._holding)
                if (node.id, share.part) not in known
            ]
        return bool(self.all)

    def note_granted(self, reservation: Reservation) -> None:
        """Note that a reservation was granted."""
        self.asked.remove(reservation)
        self.free.append(reservation)

    def take(self, avoided: frozenset[str]) -> Reservation | None:
        """Return a free place, on a node that is not `avoided` if there is one. None if such a node has no free place
        now: one will become free."""
        elsewhere = {place.node.id for place in self.all} - avoided - self.unfit.keys()
        best = next((place for place in self.free if not elsewhere or place.node.id in elsewhere), None)
        if best is not None:
            self.free.remove(best)
            self.busy.add(best)
        return best

    def put_back(self, reservation: Reservation, *, lost: bool) -> None:
        """Take back a place whose task has ended. If it was `lost`, it is reserved again while its node is alive."""
        self.busy.discard(reservation)
        if lost or reservation.node.id in self.unfit:
            self._cluster.release(reservation)
        else:
            self.free.append(reservation)

    def release_idle(self) -> None:
        """Give up all places that nothing runs in."""
        for reservation in (*self.asked, *self.free):
            self._give_back(reservation)

    def close(self) -> None:
        """Give up all places."""
        self.release_idle()
        for reservation in tuple(self.busy):
            self.put_back(reservation, lost=True)

    def _give_back(self, reservation: Reservation) -> None:
        for those in (self.asked, self.free):
            if reservation in those:
                those.remove(reservation)
        self._cluster.release(reservation)


def divide_node(node: Node, holding: Holding) -> Iterator[Share]:
    """Yield the parts of a node. No two trials, nor a trial and another program, share processors."""
    if holding is Holding.GPU:
        count = int(node.gpus)
        for number in range(count):
            # Ray counts resources to four digits.
            yield Share(node.cpus // count, 1.0, int(1e4 / count) / 1e4, ProcessorPart(number, count))
    elif node.cpus > 0:
        yield Share(node.cpus, node.gpus if holding is Holding.NODE else 0.0, 1.0)

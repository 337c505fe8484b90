"""What a fleet is read from: the places in it, and how a reader answers for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from frx_graph.fleet.reader import Answer, Failure, Reader
from frx_graph.fleet.remote import RemotePlace, RemoteStore, is_url
from frx_graph.fleet.search import Place, local_places

Placed = TypeVar("Placed")


class Source(Protocol[Placed]):
    """Places can be sent to other processes, which open the source for themselves."""

    def places(self) -> Iterator[Placed]:
        """All of them, as they are found. Raises `EvidenceError` where there is nothing to look into."""

    def answers(self, place: Placed, reader: Reader) -> Iterator[Answer]:
        """What is at a place."""


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder of runs, or a zip of some."""

    path: Path

    def places(self) -> Iterator[Place]:
        """In order of their names."""
        return local_places(self.path)

    def answers(self, place: Place, reader: Reader) -> Iterator[Answer]:
        """What is there; a place that cannot be read answers for itself."""
        if isinstance(place, Failure):
            yield place
        else:
            yield from reader.read(place)


def open_source(source: str) -> Source[Place] | Source[RemotePlace]:
    """What is at a path, or a URL that fsspec knows. Raises `EvidenceError` where there is no driver for it."""
    if not is_url(source):
        return LocalSource(Path(source))
    store = RemoteStore(source)
    return store if store.local is None else LocalSource(store.local)

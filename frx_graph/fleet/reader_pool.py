"""Several readers at once: places go in as they are found, answers come out as they are there, and few wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from frx_graph.fleet.messages import Answer
from frx_graph.fleet.reader import Reader, StoppedError

Place = TypeVar("Place")
Reading = Callable[[Place, Reader], Iterable[Answer]]
_WAITING: Final = 64
"""Answers that are kept for who adds them up; readers wait with more."""
_POLL_SECONDS: Final = 0.2


def read_places(places: Iterable[Place], reading: Reading[Place], readers: list[Reader]) -> Generator[Answer]:
    """The answers for all places, in the order in which they come; `reading` says how a reader answers for one. What
    `places` and `reading` raise ends all. In the end, and where no more answers are taken, the readers are stopped."""
    found: queue.Queue[Answer | BaseException | None] = queue.Queue(_WAITING)
    stopped, lock, waiting = threading.Event(), threading.Lock(), iter(places)

    def put(answer: Answer | BaseException | None) -> None:
        while True:
            if stopped.is_set():
                raise StoppedError
            with suppress(queue.Full):
                found.put(answer, timeout=_POLL_SECONDS)
                return

    def run_reader(reader: Reader) -> None:
        with suppress(StoppedError):
            try:
                while True:
                    with lock:
                        place = next(waiting, None)
                    if place is None:
                        break
                    for answer in reading(place, reader):
                        put(answer)
                put(None)
            except StoppedError:
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised where answers are taken
                put(error)
            finally:
                reader.close()

    threads = [threading.Thread(target=run_reader, args=(reader,), daemon=True) for reader in readers]
    try:
        for thread in threads:
            thread.start()
        working = len(threads)
        while working:
            answer = found.get()
            if isinstance(answer, BaseException):
                raise answer
            if answer is None:
                working -= 1
            else:
                yield answer
    finally:
        stopped.set()
        for reader in readers:
            reader.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()

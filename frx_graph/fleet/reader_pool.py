"""Run several readers at once: places go in as they are found, and answers come out as they arrive."""

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
"""Answers that wait to be added up; with more, readers pause."""
_POLL_SECONDS: Final = 0.2


def read_places(places: Iterable[Place], reading: Reading[Place], readers: list[Reader]) -> Generator[Answer]:
    """Yield the answers for all places in order of arrival; `reading` answers for one place with a reader. An error
    from `places` or `reading` ends all reading. Readers stop at the end, and when the caller stops."""
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
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
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

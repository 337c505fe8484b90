"""Time how long a program waits for its loader's batches.

Each of the program's calls of `next` is timed. Batches pass unchanged and are not kept. The start of the iteration
(which starts workers) and its end are recorded as separate stages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns
from typing import Any, Protocol, TypeAlias

from frx_graph.runs.sdk.event_lines import dump_loader_payload, format_loader_wait
from frx_graph.runs.sdk.recorder import Recorder
from frx_graph.runs.sdk.step import HERE


class RecorderOwner(Protocol):
    """Has the current recorder, which a forked child replaces."""

    recorder: Recorder | None


Seen: TypeAlias = Callable[[Any], None]
LoaderTold: TypeAlias = Mapping[str, int | bool | None]
_become: Callable[[Any, type], None] = object.__dict__["__class__"].__set__
"""Give an object another class, also one of accelerate's, whose own `__class__` is a property."""
NEXT, BEGIN, END = "next", "begin", "end"


class TimedLoader:
    """A loader that times another one, and behaves like it: attributes, length, `isinstance`."""

    def __init__(self, loader: Iterable[Any], owner: RecorderOwner) -> None:
        self.__dict__["_frx_loader"] = loader
        self.__dict__["_frx_owner"] = owner

    def __iter__(self) -> Iterator[Any]:
        return make_timed_iterator(self._frx_loader, self._frx_owner, iter)

    def __len__(self) -> int:
        return len(self._frx_loader)

    def __getitem__(self, index: Any) -> Any:
        return self._frx_loader[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_frx_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._frx_loader, name, value)

    @property  # type: ignore[misc]  # used only for isinstance checks
    def __class__(self) -> Any:
        """The loader's class, since frameworks check the type of a loader."""
        return type(self.__dict__["_frx_loader"])

    def __repr__(self) -> str:
        return repr(self._frx_loader)

    def __reduce__(self) -> Any:
        """Pickle as the plain loader: another process does not time it."""
        return _return_loader, (self._frx_loader,)


class TimedIterating(TimedLoader):
    """A `TimedLoader` for a loader that is an iterator itself: the program may call `next` on it directly."""

    def __init__(self, loader: Iterator[Any], owner: RecorderOwner) -> None:
        super().__init__(loader, owner)
        self.__dict__["_frx_batches"] = TimedIterator(loader, owner, _describe_loader(loader), None)

    def __next__(self) -> Any:
        return next(self._frx_batches)


class TimedIterator:
    """An iterator of batches that times each `next`."""

    def __init__(self, batches: Iterator[Any], owner: RecorderOwner, told: LoaderTold, seen: Seen | None) -> None:
        self._frx_batches = batches
        self._frx_next = batches.__next__
        self._frx_owner = owner
        self._frx_seen = seen
        self._frx_wait = dump_loader_payload(NEXT, told)
        self._frx_end = dump_loader_payload(END, told)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = perf_counter_ns()
        try:
            batch = self._frx_next()
        except StopIteration:
            _put_wait(self._frx_owner, start, self._frx_end)
            raise
        end = perf_counter_ns()
        recorder = self._frx_owner.recorder
        if recorder is not None and not HERE.loading:
            # As `_put_wait`, without the call.
            step = HERE.step
            number = None if step is None else step.number
            recorder.put((format_loader_wait, end + recorder.epoch, number, end - start, self._frx_wait))
        if self._frx_seen is not None:
            self._frx_seen(batch)
        return batch

    def __len__(self) -> int:
        return len(self._frx_batches)  # type: ignore[arg-type]  # an iterator without a length raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_frx_batches"], name)


def make_timed_iterator(
    loader: Any, owner: RecorderOwner, begin: Callable[[Any], Iterator[Any]], seen: Seen | None = None
) -> Iterator[Any]:
    """Return the iterator that `begin` makes of the loader, timed. `seen` gets each batch first, and must not raise."""
    told = _describe_loader(loader)
    start = perf_counter_ns()
    batches = begin(loader)
    _put_wait(owner, start, dump_loader_payload(BEGIN, told))
    return TimedIterator(batches, owner, told, seen)


@contextlib.contextmanager
def time_in_place(loader: Any, owner: RecorderOwner, seen: Seen | None = None) -> Iterator[None]:
    """Time the iteration of `loader`, an object that a framework holds, within the block.

    The object's class is replaced by a subclass. An object whose class cannot change is not timed.
    """
    kind = type(loader)

    def begin(self: Any) -> Iterator[Any]:
        return make_timed_iterator(self, owner, kind.__iter__, seen)

    try:
        _become(loader, type(kind.__name__, (kind,), {"__iter__": begin, "__module__": kind.__module__}))
    except Exception:  # noqa: BLE001 - classes can forbid to be inherited from in many ways
        yield
        return
    try:
        yield
    finally:
        _become(loader, kind)


def _put_wait(owner: RecorderOwner, start: int, payload: str) -> None:
    end = perf_counter_ns()
    recorder = owner.recorder
    if recorder is not None and not HERE.loading:
        step = HERE.step
        number = None if step is None else step.number
        recorder.put((format_loader_wait, end + recorder.epoch, number, end - start, payload))


def _describe_loader(loader: Any) -> LoaderTold:
    def read(owner: Any, name: str, kind: type[int] = int) -> int | bool | None:
        value = getattr(owner, name, None)
        return value if type(value) is kind and -(2**63) <= value < 2**63 else None

    sized = loader if getattr(loader, "batch_size", None) is not None else getattr(loader, "batch_sampler", None)
    return {
        "num_workers": read(loader, "num_workers"),
        "prefetch_factor": read(loader, "prefetch_factor"),
        "pinned_memory": read(loader, "pin_memory", bool),
        "persistent_workers": read(loader, "persistent_workers", bool),
        "batch_size": read(sized, "batch_size"),
    }


def _return_loader(loader: Any) -> Any:
    return loader

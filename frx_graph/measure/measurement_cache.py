"""Keep measurements of operators on disk, one file per environment, and measure what is missing.

The file is replaced as a whole and merged under a lock, so that concurrent processes lose nothing and never read a torn
file. A malformed file is started again; without a writable folder every run measures for itself.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.facts.operator_signature import OperatorSignature, SpecArgument, TensorSpec
from frx_graph.measure.machine.disturbance import watch_disturbance
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.measure.operators.operator_call import Progress, measure_operators
from frx_graph.measure.operators.operator_measurement import LayoutTimes, OperatorMeasurement
from frx_graph.measure.operators.operator_timing import time_layouts, time_variants
from frx_graph.support.cache_directory import get_cache_directory, write_cache_entry

_LOCK_SECONDS = 10.0
_MOST_ENTRIES = 20_000
"""About 10 MB; the oldest go first."""

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Value = TypeVar("_Value")


class _StoredFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    version: Literal[4] = 4
    measurements: dict[str, OperatorMeasurement] = {}
    layout_times: dict[str, LayoutTimes] = {}
    seconds: dict[str, _Seconds] = {}


class MeasuredOperators:
    """Measurements of operators on this machine, from the cache or taken now.

    `failures` holds the calls that could not be measured, and why. `directory` replaces `get_cache_directory()`.
    """

    def __init__(self, device_type: str, *, directory: Path | None = None) -> None:
        self._device_type = device_type
        self._path = get_measured_operators_path(device_type, directory)
        self._measurements: dict[OperatorSignature, OperatorMeasurement] = {}
        self._times: dict[OperatorSignature, LayoutTimes] = {}
        self._resident: bool | None = None
        self._seconds: dict[OperatorSignature, float] = {}
        self.failures: dict[OperatorSignature, str] = {}
        self.loaded = False
        """True if other programs disturbed times that were taken now."""

    def measure(
        self,
        signatures: Iterable[OperatorSignature],
        anchors: Iterable[OperatorSignature] = (),
        *,
        resident: bool = False,
        progress: Progress = lambda _signature: None,
    ) -> None:
        """Read the copies of `signatures` and the layout times of `anchors` from the cache, and measure missing ones.

        With `resident`, the program's data stays in the processor's caches, and so do the operands of what is timed.
        Failed calls are added to `failures`. Times that other programs disturbed, or that are not steady, are used, but
        not stored.
        """
        calls = {s: make_signature_key(s) for s in signatures if s not in self._measurements}
        if self._resident is not resident:
            self._times.clear()
            self._resident = resident
        regime = " resident" if resident else ""
        timed = {s: f"{make_signature_key(s)}{regime}" for s in anchors if s not in self._times}
        if not calls and not timed:
            return
        stored = _read(self._path)
        self._measurements |= {s: stored.measurements[key] for s, key in calls.items() if key in stored.measurements}
        self._times |= {s: stored.layout_times[key] for s, key in timed.items() if key in stored.layout_times}
        new_measurements = measure_operators(
            [s for s in calls if s not in self._measurements], on_failure=self._record_failure, progress=progress
        )
        with watch_disturbance() as disturbed:
            new_times = time_layouts(
                [s for s in timed if s not in self._times],
                resident=resident,
                on_failure=self._record_failure,
                progress=progress,
            )
        self._measurements.update(new_measurements)
        self._times.update(new_times)
        if new_times and self._device_type == "cpu" and disturbed():
            # Which operators copy does not depend on the load; how long they take does.
            new_times = {}
            self.loaded = True
        if new_measurements or new_times:
            new = _StoredFile(
                measurements={calls[s]: m for s, m in new_measurements.items()},
                layout_times={timed[s]: t for s, t in new_times.items() if t.steady},
            )
            _merge(self._path, new)

    def time(
        self, groups: Iterable[Sequence[OperatorSignature]], *, progress: Progress = lambda _signature: None
    ) -> None:
        """Read or measure the seconds of all calls in `groups`, like `measure`. Calls of a group are compared: if one
        is missing, all are measured, and scaled to the known ones."""
        wanted = [group for group in dict.fromkeys(map(tuple, groups)) if not all(s in self._seconds for s in group)]
        if not wanted:
            return
        stored = _read(self._path).seconds
        known = {s: stored[key] for group in wanted for s in group if (key := make_signature_key(s)) in stored}
        for group in wanted:
            if all(s in known for s in group):
                self._seconds.update((s, known[s]) for s in group)
        missing = [group for group in wanted if not all(s in self._seconds for s in group)]
        with watch_disturbance() as disturbed:
            taken = time_variants(missing, on_failure=self._record_failure, progress=progress)
        new = scale_to_known(missing, taken, known | self._seconds)
        self._seconds.update(new)
        if new and self._device_type == "cpu" and disturbed():
            self.loaded = True
        elif new:
            _merge(self._path, _StoredFile(seconds={make_signature_key(s): seconds for s, seconds in new.items()}))

    def measurement(self, signature: OperatorSignature) -> OperatorMeasurement | None:
        """Return the copies and implementation of a call; None if it was not measured."""
        return self._measurements.get(signature)

    def layout_times(self, signature: OperatorSignature) -> LayoutTimes | None:
        """Return the call's time in each layout; None if it was not measured."""
        return self._times.get(signature)

    def seconds(self, signature: OperatorSignature) -> float | None:
        """Return the seconds that the call takes by itself; None if it was not timed."""
        return self._seconds.get(signature)

    def _record_failure(self, signature: OperatorSignature, reason: str) -> None:
        self.failures[signature] = reason


def scale_to_known(
    groups: Iterable[Sequence[OperatorSignature]],
    taken: Mapping[OperatorSignature, float],
    known: Mapping[OperatorSignature, float],
) -> Mapping[OperatorSignature, float]:
    """Scale the seconds `taken` now to the speed at which the `known` ones of each group were taken, which stay. A
    machine changes its speed, and calls are compared across groups, too."""
    seconds: dict[OperatorSignature, float] = {}
    for group in groups:
        ratios = [taken[s] / known[s] for s in group if s in taken and known.get(s)]
        scale = statistics.median(ratios) if ratios else 1.0
        for signature in group:
            if signature in taken:
                seconds.setdefault(signature, known.get(signature) or taken[signature] / scale)
    return seconds


def get_measured_operators_path(device_type: str, directory: Path | None = None) -> Path:
    """Return the file for operators on `device_type` in this process's environment; `directory` replaces
    `get_cache_directory()`."""
    environment = get_measurement_environment(device_type)
    return (directory or get_cache_directory()) / f"operators-{device_type}-{environment.fingerprint}.json"


def read_stored_seconds(path: Path) -> Mapping[str, float]:
    """Return the seconds in the file, by key; none if it cannot be read."""
    return _read(path).seconds


def store_seconds(path: Path, seconds: Mapping[str, float]) -> None:
    """Add to the seconds in the file."""
    _merge(path, _StoredFile(seconds=dict(seconds)))


def make_signature_key(signature: OperatorSignature) -> str:
    """Return a signature as text, different for different signatures and the same in every process."""
    arguments = [_make_argument_key(argument) for argument in signature.args]
    named = [f"{name}={_make_argument_key(argument)}" for name, argument in signature.kwargs]
    return f"{signature.target}({', '.join([*arguments, *named])})"


def _make_argument_key(argument: SpecArgument) -> str:
    if isinstance(argument, TensorSpec):
        sizes, strides = ("x".join(map(str, values)) for values in (argument.shape, argument.strides))
        return f"{str(argument.dtype).removeprefix('torch.')}[{sizes}|{strides}]@{argument.device}"
    if isinstance(argument, tuple):
        return f"({', '.join(_make_argument_key(item) for item in argument)})"
    if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
        return str(argument)
    return repr(argument)


def _read(path: Path) -> _StoredFile:
    """Return the file's contents; nothing if it is missing, unreadable or malformed."""
    try:
        return _StoredFile.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return _StoredFile()


def _merge(path: Path, new: _StoredFile) -> None:
    """Add to the file under its lock, or without one if locking fails. Replacing the file stays atomic; at worst, new
    entries of another process are measured again."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, Timeout, NotImplementedError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path.with_suffix(".lock"), timeout=_LOCK_SECONDS))
        stored = _read(path)
        merged = _StoredFile(
            measurements=_keep_newest(stored.measurements | new.measurements),
            layout_times=_keep_newest(stored.layout_times | new.layout_times),
            seconds=_keep_newest(stored.seconds | new.seconds),
        )
        write_cache_entry(path, merged.model_dump_json())


def _keep_newest(entries: dict[str, _Value]) -> dict[str, _Value]:
    return dict(list(entries.items())[-_MOST_ENTRIES:])

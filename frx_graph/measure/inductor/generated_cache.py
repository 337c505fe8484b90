"""How long the loops take that Inductor writes on this machine: from the cache of measured operators, or timed now.

Such a loop takes microseconds, and on a busy machine as long as a scheduler's time slice, in one order as in the other:
what was timed then is not used. Starting a process that compiles takes seconds. So what could not be had is remembered
as long as this process lives, and not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from frx_graph.facts.operator_signature import GeneratedCall
from frx_graph.measure.inductor.generated_timing import GeneratedTimes, time_generated
from frx_graph.measure.measurement_cache import (
    measured_operators_path,
    signature_key,
    store_seconds,
    stored_seconds,
)

Measure = Callable[[Iterable[Sequence[GeneratedCall]]], GeneratedTimes]

_KNOWN: dict[tuple[Path, str], float | None] = {}
"""By the file that it belongs in; None for what could not be timed."""


def generated_seconds(
    groups: Iterable[Sequence[GeneratedCall]],
    device_type: str,
    *,
    directory: Path | None = None,
    measure: Measure = time_generated,
) -> Mapping[GeneratedCall, float]:
    """Seconds of each call. Those of one group are to be compared: where one is missing, all are measured, and a group
    of which one could not be measured is missing from the result. `directory` replaces `cache_directory()`."""
    asked = {group: tuple(map(generated_key, group)) for group in dict.fromkeys(map(tuple, groups))}
    if not asked:
        return {}
    path = measured_operators_path(device_type, directory)
    stored = stored_seconds(path)
    _KNOWN.update(((path, key), stored[key]) for keys in asked.values() for key in keys if key in stored)
    missing = [group for group, keys in asked.items() if any((path, key) not in _KNOWN for key in keys)]
    if missing:
        times = measure(missing)
        seconds = {} if times.disturbed else {generated_key(call): s for call, s in times.seconds.items()}
        _KNOWN.update(((path, key), seconds.get(key)) for group in missing for key in asked[group])
        if seconds:
            store_seconds(path, seconds)
    found: dict[GeneratedCall, float] = {}
    for group, keys in asked.items():
        taken = [s for key in keys if (s := _KNOWN[path, key]) is not None]
        if len(taken) == len(group):
            found.update(zip(group, taken, strict=True))
    return found


def generated_key(call: GeneratedCall) -> str:
    """The call as text, different from the key of any kernel that eager runs."""
    results = ", ".join(f"{read.position}|{'x'.join(map(str, read.strides))}" for read in call.results)
    return f"inductor {call.times} x {signature_key(call.signature)} -> {results}"

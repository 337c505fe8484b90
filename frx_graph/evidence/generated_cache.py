"""What the loops that Inductor writes take on this machine: from the cache of measured operators, and timed where it was
missing.

Starting a process that compiles takes seconds. So what a busy machine measured, which is not stored, and what could not
be measured is remembered as long as this process lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from frx_graph.evidence.generated_timing import GeneratedTimes, time_generated
from frx_graph.evidence.measurement_cache import (
    measured_operators_path,
    signature_key,
    store_seconds,
    stored_seconds,
)
from frx_graph.facts.generated_call import GeneratedCall

Measure = Callable[[Iterable[Sequence[GeneratedCall]]], GeneratedTimes]

_REMEMBERED: dict[tuple[Path, str], float | None] = {}
"""By the file that it is not in; None for what could not be timed."""


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

    def known(key: str) -> float | None:
        return stored.get(key, _REMEMBERED.get((path, key)))

    def is_open(keys: Sequence[str]) -> bool:
        return any(key not in stored and (path, key) not in _REMEMBERED for key in keys)

    missing = [group for group, keys in asked.items() if is_open(keys)]
    times = measure(missing) if missing else GeneratedTimes()
    for group in missing:
        _REMEMBERED.update(
            ((path, key), times.seconds.get(call)) for call, key in zip(group, asked[group], strict=True)
        )
    if times.seconds and not times.disturbed:
        store_seconds(path, {generated_key(call): seconds for call, seconds in times.seconds.items()})
    found: dict[GeneratedCall, float] = {}
    for group, keys in asked.items():
        seconds = [times.seconds.get(call, known(key)) for call, key in zip(group, keys, strict=True)]
        if None not in seconds:
            found.update((call, s) for call, s in zip(group, seconds, strict=True) if s is not None)
    return found


def generated_key(call: GeneratedCall) -> str:
    """The call as text, different from the key of any kernel that eager runs."""
    results = ", ".join(f"{read.position}|{'x'.join(map(str, read.strides))}" for read in call.results)
    return f"inductor {call.times} x {signature_key(call.signature)} -> {results}"

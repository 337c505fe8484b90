"""Name the differences between the setup that a plan was promoted in and the present one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from frx_graph.support.plain_text import clean_line
from frx_graph.trials.environment_record import TrialSetup

_MOST_NAMED = 4
_LONGEST = 60
"""Characters of a value that are shown."""
_NAMES = {
    "frx": "frx-graph",
    "python": "Python",
    "onednn": "oneDNN",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "capability": "compute capability",
    "cpu_capability": "CPU capability",
    "device_name": "device",
    "interop_threads": "inter-op threads",
    "cpp_compiler": "C++ compiler",
    "allocation": "allocator",
}
"""Names of fields that are not their own with spaces."""


def describe_setup_changes(before: Mapping[str, Any], now: TrialSetup) -> str:
    """Return what differs between the setup in a trial's document and this one: `threads 1 → 2, torch 2.13.0 → 2.15.0`.
    If nothing does, frx-graph's own code has changed."""
    old, new = dict(_list_values(before)), dict(_list_values(asdict(now)))
    changes = list(
        dict.fromkeys(
            f"{key[1]} {_format_value(old.get(key))} → {_format_value(new.get(key))}"
            for key in dict.fromkeys((*new, *old))
            if old.get(key) != new.get(key)
        )
    )
    if not changes:
        return "the code of frx-graph"
    hidden = len(changes) - _MOST_NAMED
    return ", ".join(changes[:_MOST_NAMED]) + (f" and {hidden} more" if hidden > 0 else "")


def _list_values(setup: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str | None]]:
    """Yield values by field and name; variables and settings have names of their own."""
    for field, value in setup.items():
        if isinstance(value, Mapping):
            yield from _list_values(value)
        elif isinstance(value, (list, tuple)):
            pairs = (one for one in value if isinstance(one, (list, tuple)) and len(one) == 2)
            yield from (((field, str(name)), str(own)) for name, own in pairs)
        else:
            yield (field, _NAMES.get(field, field.replace("_", " "))), None if value is None else str(value)


def _format_value(value: str | None) -> str:
    return "none" if value is None else clean_line(value, _LONGEST) or "empty"

"""Damage to the values of JSON, which stays JSON: what reads it gets behind the syntax, where other damage ends."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 31,
    1 << 64,
    10**400,
    0.5,
    1e-320,
    float("nan"),
    float("-inf"),
    "",
    "0",
    "[red]x[/red]\x1b[31m",
    "\u202eevil\ud800",
    "<script>alert(1)</script>",
    "x" * 3000,
    [],
    {},
    [[]],
    {"": None},
)
_DEEP = 200
_MOST_PLACES = 20_000
"""Of a document that is changed once more: what is repeated again and again would have no end."""


def with_other_values(data: bytes, draw: random.Random) -> bytes:
    """Of a document, or of a line of many documents. What is no JSON stays as it is."""
    try:
        return json.dumps(_changed(json.loads(data), draw)).encode()
    except (ValueError, RecursionError):
        pass
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at = draw.randrange(len(lines))
    try:
        lines[at] = json.dumps(_changed(json.loads(lines[at]), draw)).encode() + b"\n"
    except (ValueError, RecursionError):
        return data
    return b"".join(lines)


def _changed(document: Any, draw: random.Random) -> Any:
    """In one to five places, each alike likely, whether it lies deep or not."""
    for _ in range(draw.randrange(1, 6)):
        places = _places(document)
        if not places:
            return draw.choice(STRANGE)
        if len(places) > _MOST_PLACES:
            break
        container, key = draw.choice(places)
        other, there = draw.choice(places)
        match draw.randrange(6):
            case 0:
                del container[key]
            case 1:
                container[key] = _copied(other[there])
            case 2:
                container[key] = [container[key]] * draw.choice((1, 2, 50))
            case 3 if isinstance(container, dict):
                container[draw.choice((str(there), "", "\ud800", "ts", "args"))] = container.pop(key)
            case 4 if isinstance(container[key], int | float):
                container[key] = draw.choice((-1, 2, 1.5, 1e9)) * min(max(container[key], -1e300), 1e300)
            case _:
                container[key] = _copied(draw.choice(STRANGE))
    return document


def _copied(value: Any) -> Any:
    """One that holds itself would have no end."""
    return json.loads(json.dumps(value))


def _places(document: Any) -> Sequence[tuple[Any, Any]]:
    """Every value's container, and where it is in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [(document, 0)]
    while waiting:
        container, depth = waiting.pop()
        if not isinstance(container, dict | list) or depth > _DEEP:
            continue
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            found.append((container, key))
            waiting.append((value, depth + 1))
    return found

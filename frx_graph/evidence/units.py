"""Convert units that profilers write to a common one: `Kbyte/s` is 1000 `byte/s`, `nsecond` 1e-9 `s`.

Nsight Compute scales by powers of 1000, even bytes: it shows 32,768 bytes read by a kernel as 32.77 Kbyte.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_PREFIXES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_WORDS = {
    **{name: name for name in ("s", "byte", "hz", "cycle", "inst", "thread", "warp", "block", "cluster", "register")},
    **{name: name for name in ("sector", "request", "flop", "%")},
    "second": "s",
    "req": "request",
    "branches": "branch",
    "sm": "SM",
}
"""Units that Nsight Compute writes, in lower case, and their names here."""
_ATOM = re.compile(r"([nuµm]|[KMGTP])?(.+)", re.DOTALL)
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as written: multiply by `factor` to convert to `name`."""

    name: str
    factor: float


@functools.lru_cache(maxsize=1024)
def parse_unit(text: str) -> Unit | None:
    """Return the unit that `text` represents; None for an unknown one. Without a unit the name is empty."""
    text = text.strip()
    if not text:
        return Unit("", 1.0)
    if len(text) > _LONGEST:
        return None
    above, slash, below = text.partition("/")
    numerator = _parse_atom(above)
    if numerator is None or not slash:
        return numerator
    denominator = _parse_atom(below)
    if denominator is None:
        return None
    name = f"{numerator.name}/{denominator.name}"
    # Clocks are written either way: 1.98 Ghz, 1.98 cycle/nsecond.
    return Unit("hz" if name == "cycle/s" else name, numerator.factor / denominator.factor)


def _parse_atom(text: str) -> Unit | None:
    whole = _WORDS.get(text.lower())
    if whole is not None:
        return Unit(whole, 1.0)
    found = _ATOM.fullmatch(text)
    if found is None or found[1] is None:
        return None
    name = _WORDS.get(found[2].lower())
    # Only seconds are divided: a `Mwarp` is a million, and there is no `mwarp`.
    if name is None or name == "%" or ((name == "s") is (found[1] in "KMGTP")):
        return None
    return Unit(name, _PREFIXES[found[1]])

"""Finds living objects by their kind, or by what they refer to, beside threads of the program's own.

Python's garbage collector also lists tuples that a thread is still building. While anything else refers to one it
cannot be finished, and that thread's `tuple(...)` raises `SystemError` (CPython 3.11, bpo-15108): what the collector
lists may not outlive the moment in which no other thread runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import chain, compress, starmap, tee
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """The objects that are exactly of one of `kinds`, classes that are written in Python or made by such: their
    instances refer to them."""
    return _referring(kinds, frozenset(kinds).__contains__)


def referring_dicts(objects: Sequence[object]) -> list[dict[Any, Any]]:
    """The dictionaries that refer to one of `objects`, such as all in which one is a key."""
    return _referring(objects, dict.__subclasscheck__)


def _referring(objects: Sequence[object], wanted: Callable[[type], bool]) -> list[Any]:
    """What refers to one of `objects`, and is of a `wanted` type, which nothing written in Python decides."""
    searches = list(tee(starmap(gc.get_referrers, [objects])))
    # One call in C searches, chooses, and lets go of all else; other threads run between two steps of Python's. No name
    # may hold a part of it.
    return list(
        compress(chain.from_iterable(searches.pop()), map(wanted, map(type, chain.from_iterable(searches.pop()))))
    )

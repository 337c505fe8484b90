"""Finds living objects by their kind, or by what they refer to, beside threads of the program's own.

Python's garbage collector also lists tuples that a thread is still building. While anything else refers to one it
cannot be finished, and that thread's `tuple(...)` raises `SystemError` (CPython 3.11, bpo-15108): no list of all
objects may outlive the moment in which no other thread runs.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import chain, starmap
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """The objects that are exactly of one of `kinds`, classes that are written in Python or made by such: their
    instances refer to them, and no tuple that somebody builds does."""
    return [found for found in gc.get_referrers(*kinds) if type(found) in kinds]


def referring_dicts(objects: Sequence[object]) -> list[dict[Any, Any]]:
    """The dictionaries that refer to one of `objects`, such as all in which one is a key."""
    # In C from one end to the other: another thread runs between two steps of Python's alone.
    return list(filter(dict.__instancecheck__, chain.from_iterable(starmap(gc.get_referrers, [objects]))))

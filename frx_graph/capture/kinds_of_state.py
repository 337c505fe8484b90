"""Which Python objects can change at all, and which of them keep what changes where Python can put it back."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import logging
import operator
import random
import re
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
import torch

Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]
_CONTAINERS = (OrderedDict, dict, list, set, deque)
"""An ordered dictionary keeps an order of its own, which the methods of `dict` would leave behind."""

_CONSTANTS = (
    *(type, types.ModuleType, types.CodeType, type(None), types.EllipsisType, types.NotImplementedType),
    *(types.GenericAlias, types.UnionType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(str, bytes, int, float, complex, range, slice, enum.Enum, decimal.Decimal, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
    *(numpy.generic, numpy.dtype, numpy.ufunc),
    # Locks are released by who takes them, and what is logged cannot be taken back by anybody.
    *(type(threading.Lock()), type(threading.RLock()), logging.Logger, logging.LoggerAdapter, logging.Handler),
    # Draws from the system, and keeps nothing.
    random.SystemRandom,
    # Belongs to whoever holds what it stands for, as a Lightning module's trainer does.
    *weakref.ProxyTypes,
)
_BITS = numpy.random.bit_generator.BitGenerator
_WITH_WAY_BACK = (
    *(types.CellType, torch.Generator, numpy.random.Generator, numpy.random.RandomState, _BITS, random.Random),
    *(numpy.ndarray, bytearray, array.array),
)
_MADE_BY_A_CLASS_STATEMENT = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: by a class statement, or by a library in C in the same way."""


def is_constant(value: object) -> bool:
    """True for what does not change when a program runs."""
    return isinstance(value, _CONSTANTS)


def has_way_back(value: object) -> bool:
    """True for what `way_back` takes."""
    return isinstance(value, _WITH_WAY_BACK)


def way_back(value: Any) -> Callable[[], object]:
    """Puts a random generator, an array, or a variable that functions close over back to where it stands now."""
    if isinstance(value, types.CellType):
        return _way_back_of_variable(value)
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, (numpy.random.Generator, _BITS)):
        bits: Any = value.bit_generator if isinstance(value, numpy.random.Generator) else value
        return partial(setattr, bits, "state", bits.state)
    if isinstance(value, numpy.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if isinstance(value, numpy.ndarray):
        plain = value.view(numpy.ndarray)
        return partial(numpy.copyto, plain, plain.copy()) if value.flags.writeable else bool
    return partial(value.__setitem__, slice(None), value[:])


def _way_back_of_variable(cell: types.CellType) -> Callable[[], object]:
    try:
        return partial(setattr, cell, "cell_contents", cell.cell_contents)
    except ValueError:
        # The enclosing function has not assigned the variable yet.
        return partial(delattr, cell, "cell_contents")


def container_type(value: object) -> Any:
    """The type of Python's whose methods read and change this container, whatever a subclass makes of them; None for
    what is no container that changes."""
    return next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)


def slots(kind: type) -> Iterator[types.MemberDescriptorType]:
    """Where instances of `kind` keep attributes outside of their `__dict__`."""
    for base in kind.__mro__:
        if _written_in_python(base):
            yield from (member for member in vars(base).values() if isinstance(member, types.MemberDescriptorType))


def _written_in_python(kind: type) -> bool:
    if not kind.__flags__ & _MADE_BY_A_CLASS_STATEMENT:
        return False
    # What C adds to a class knows the class; so does what Python itself adds for attributes.
    own = ((name, member) for name, member in vars(kind).items() if getattr(member, "__objclass__", None) is kind)
    return all(
        name in ("__dict__", "__weakref__") or isinstance(member, types.MemberDescriptorType) for name, member in own
    )

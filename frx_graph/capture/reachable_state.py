"""Which modules and tensors a program can touch: what it closes over, is bound to, is given, or names as a global."""

from __future__ import annotations

import functools
import inspect
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from frx_graph.capture.call_site import is_foreign

_OBJECT_DEPTH = 2
"""How many objects deep attributes are followed: a trainer, and what the trainer holds. Behind that lies the world."""
_LIBRARIES = tuple(
    f"{path}/" for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")
)


@dataclass(frozen=True)
class Reachable:
    """`modules` with all that lie inside them; `tensors` are those that no module needs to be asked for."""

    modules: tuple[nn.Module, ...]
    tensors: tuple[Tensor, ...]


def reachable(*roots: object) -> Reachable:
    """What can be reached from `roots`, each once, in the order in which it is found.

    Followed are registered submodules, containers, closure cells, defaults, partial and bound functions, attributes of
    objects, and the globals that a program's own functions name; a library's functions do not name the program's.
    """
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}
    # The values themselves are kept, since an identity is only one for as long as its object lives.
    seen: dict[int, object] = {}
    pending: deque[tuple[object, int]] = deque((root, 0) for root in roots)
    while pending:
        value, depth = pending.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif isinstance(value, nn.Module):
            modules.update((id(module), module) for module in value.modules())
        elif isinstance(value, (type, ModuleType, str, bytes, int, float, complex)) or value is None:
            continue
        else:
            inside = _parts(value)
            if inside is None and depth < _OBJECT_DEPTH:
                depth, inside = depth + 1, _attributes(value)
            pending.extend((part, depth) for part in inside or ())
    return Reachable(tuple(modules.values()), tuple(tensors.values()))


def _parts(value: object) -> Iterator[object] | None:
    """What a function or a container holds; None for any other object."""
    if isinstance(value, FunctionType):
        return _held_by(value)
    if isinstance(value, MethodType):
        return iter((value.__func__, value.__self__))
    if isinstance(value, functools.partial):
        return iter((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, Mapping):
        return iter(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return iter(value)
    leaves = pytree.tree_leaves(value)
    return None if len(leaves) == 1 and leaves[0] is value else iter(leaves)


def _attributes(value: object) -> Iterator[object]:
    """The object's own attributes, and the function that a call of it runs."""
    yield from getattr(value, "__dict__", {}).values()
    call = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(call, FunctionType):
        yield call


def _held_by(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # The enclosing function has not assigned the variable yet.
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    file = function.__code__.co_filename
    if not is_foreign(file) and not file.startswith(_LIBRARIES):
        for name in _names(function.__code__):
            yield function.__globals__.get(name)


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function and the functions inside it look up, attributes among them."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)

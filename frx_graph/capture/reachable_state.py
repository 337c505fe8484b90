"""What a program can touch: modules, tensors and Python's containers that it closes over, is bound to, is given, or
names as a global."""

from __future__ import annotations

import functools
import inspect
import sysconfig
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from frx_graph.capture.call_site import is_foreign

_OBJECT_DEPTH = 2
"""How many objects deep attributes are followed: a trainer, and what the trainer holds. Behind that lies the world."""
_LIBRARIES = tuple(
    f"{path}/" for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")
)


TORCHS_OWN = frozenset(vars(nn.Module()))
"""The attributes that every module has."""

_MADE_LATER = (LazyModuleMixin, torch.jit.ScriptModule)
"""Modules that torch makes others of in their first call, or that do not keep their attributes in Python."""

Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)


@dataclass(frozen=True)
class Reachable:
    """`modules` with all that lie inside them; `tensors` are those that no module needs to be asked for. `containers`
    can be changed; `owners` are the objects and modules whose attributes were followed. Of either none are torch's."""

    modules: tuple[nn.Module, ...]
    tensors: tuple[Tensor, ...]
    containers: tuple[Container, ...]
    owners: tuple[object, ...]


def reachable(*roots: object) -> Reachable:
    """What can be reached from `roots`, each once, in the order in which it is found.

    Followed are registered submodules, containers, closure cells, defaults, partial and bound functions, attributes of
    objects, what modules hold besides objects of their own kind, and the globals that a program's own functions name;
    a library's functions do not name the program's.
    """
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}
    containers: list[Container] = []
    owners: list[object] = []
    # The values themselves are kept, since an identity is only one for as long as its object lives.
    seen: dict[int, object] = {}
    pending: deque[tuple[object, int, bool]] = deque((root, 0, True) for root in roots)
    while pending:
        value, depth, the_programs = pending.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif isinstance(value, nn.Module):
            inside_it = {id(module): module for module in value.modules() if id(module) not in modules}
            modules.update(inside_it)
            written = [module for module in inside_it.values() if not isinstance(module, _MADE_LATER)]
            owners.extend(written)
            held = [part for module in written for part in own_attributes(module).values()]
            pending.extend((part, _OBJECT_DEPTH, the_programs) for part in held)
        elif isinstance(value, (type, ModuleType, str, bytes, int, float, complex)) or value is None:
            continue
        else:
            # What compilers note of a program is not the program's.
            the_programs = the_programs and str(type(value).__module__).partition(".")[0] not in ("torch", "frx_graph")
            if the_programs and type(value) in _CONTAINERS:
                containers.append(value)  # type: ignore[arg-type]  # as its type says
            inside = _parts(value)
            if inside is None and depth < _OBJECT_DEPTH:
                if the_programs and hasattr(value, "__dict__"):
                    owners.append(value)
                depth, inside = depth + 1, _attributes(value)
            pending.extend((part, depth, the_programs) for part in inside or ())
    return Reachable(tuple(modules.values()), tuple(tensors.values()), tuple(containers), tuple(owners))


def own_attributes(owner: object) -> dict[str, Any]:
    """The attributes that a program has given an object; of a module, those besides parameters, submodules and whatever
    else every module has."""
    torchs = TORCHS_OWN if isinstance(owner, nn.Module) else ()
    return {name: value for name, value in getattr(owner, "__dict__", {}).items() if name not in torchs}


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
    yield from own_attributes(value).values()
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

"""What a program can touch: modules, tensors and Python's objects that it closes over, is bound to, is given, or names
as a global."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import sysconfig
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
)
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from frx_graph.capture.call_site import is_foreign
from frx_graph.capture.kinds_of_state import (
    Container,
    container_type,
    has_way_back,
    is_constant,
    slots,
)

_OBJECT_DEPTH = 8
"""How many objects deep attributes are followed: deeper lie chains of objects, and behind a trainer the world."""
_LIBRARIES = tuple(
    f"{path}/" for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")
)
_CACHED_FUNCTION = type(functools.lru_cache(len))


TORCHS_OWN = frozenset(vars(nn.Module()))
"""The attributes that every module has."""
_HOOKS = tuple(name for name in TORCHS_OWN if name.endswith("_hooks") and ("_forward" in name or "_backward" in name))
_HOOKS_OF_ALL = tuple(name for name in vars(nn.modules.module) if name.startswith("_global_") and "_hooks" in name)
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")

MADE_LATER = (LazyModuleMixin, torch.jit.ScriptModule)
"""Modules that torch makes others of in their first call, or that do not keep their attributes in Python."""


@dataclass(frozen=True)
class Reachable:
    """`modules` with all that lie inside them; `tensors` are those that no module needs to be asked for. `containers`
    can be changed; `owners` are the objects and modules whose attributes were followed; `with_way_back` is what
    `way_back` takes. Of these none are torch's. `variables` are the globals that the program's functions write to, by
    namespace and name."""

    modules: tuple[nn.Module, ...]
    tensors: tuple[Tensor, ...]
    containers: tuple[Container, ...]
    owners: tuple[object, ...]
    with_way_back: tuple[object, ...]
    variables: tuple[tuple[dict[str, Any], str], ...]


def reachable(*roots: object) -> Reachable:
    """What can be reached from `roots`, each once, in the order in which it is found.

    Followed are registered submodules, containers, closure cells, defaults, partial and bound functions, attributes of
    objects, what modules hold besides objects of their own kind, the methods of the program's own modules, hooks of
    modules and tensors that run in a call, and the globals that a program's own functions name; a library's functions
    do not name the program's.
    """
    search = _Search()
    # Attributes of tensors of a subclass are looked at, not asked for.
    with torch._C.DisableTorchFunctionSubclass():
        search.follow(roots)
    return Reachable(
        tuple(search.modules.values()),
        tuple(search.tensors.values()),
        tuple(search.containers),
        tuple(search.owners),
        tuple(search.with_way_back),
        tuple(search.variables),
    )


class _Search:
    def __init__(self) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.tensors: dict[int, Tensor] = {}
        self.containers: list[Container] = []
        self.owners: list[object] = []
        self.with_way_back: list[object] = []
        self.variables: list[tuple[dict[str, Any], str]] = []
        # The values themselves are kept, since an identity is only one for as long as its object lives.
        self._seen: dict[int, object] = {}
        self._pending: deque[tuple[object, int, bool]] = deque()

    def follow(self, roots: Iterable[object]) -> None:
        self._later(roots, 0, True)
        for name in _HOOKS_OF_ALL:
            self._later(_hooks(nn.modules.module, name), 0, True)
        while self._pending:
            value, depth, the_programs = self._pending.popleft()
            if is_constant(value) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if isinstance(value, Tensor):
                self.tensors[id(value)] = value
                self._hooks_of_tensor(value)
            elif isinstance(value, nn.Module):
                self._module(value, the_programs)
            else:
                self._object(value, depth, the_programs)

    def _later(self, values: Iterable[object], depth: int, the_programs: bool) -> None:
        self._pending.extend((value, depth, the_programs) for value in values)

    def _module(self, value: nn.Module, the_programs: bool) -> None:
        inside_it = {id(module): module for module in value.modules() if id(module) not in self.modules}
        self.modules.update(inside_it)
        for module in inside_it.values():
            for parameter in module.parameters(recurse=False):
                self._hooks_of_tensor(parameter)
            for name in _HOOKS:
                self._later(_hooks(module, name), 0, the_programs)
            if not isinstance(module, MADE_LATER):
                self.owners.append(module)
                self._later((*own_attributes(module).values(), *_methods(type(module))), 0, the_programs)

    def _hooks_of_tensor(self, tensor: Tensor) -> None:
        for name in _HOOKS_OF_TENSORS:
            hooks = getattr(tensor, name, None)
            if isinstance(hooks, dict):
                # A hook may take itself out.
                self.containers.append(hooks)
                self._later(hooks.values(), 0, True)

    def _object(self, value: object, depth: int, the_programs: bool) -> None:
        # What compilers note of a program is not the program's.
        torchs = str(type(value).__module__).partition(".")[0] in ("torch", "frx_graph")
        if the_programs and has_way_back(value):
            self.with_way_back.append(value)
        the_programs = the_programs and not torchs
        if the_programs and container_type(value) is not None:
            self.containers.append(value)  # type: ignore[arg-type]  # as its type says
        if isinstance(value, FunctionType):
            self._function(value, depth, the_programs)
            return
        inside = _parts(value)
        self._later(inside or (), depth, the_programs)
        if inside is None or (hasattr(value, "__dict__") and type(value) is not OrderedDict):
            self._attributes(value, depth, the_programs)

    def _attributes(self, value: object, depth: int, the_programs: bool) -> None:
        """Follow the object's own attributes, and the function that a call of it runs."""
        if depth >= _OBJECT_DEPTH:
            return
        if the_programs:
            self.owners.append(value)
        self._later((*own_attributes(value).values(), *slot_values(value).values()), depth + 1, the_programs)
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, FunctionType):
            self._later((call,), depth + 1, the_programs)

    def _function(self, function: FunctionType, depth: int, the_programs: bool) -> None:
        file = function.__code__.co_filename
        foreign = is_foreign(file)
        # What torch's wrappers note for themselves is not the program's, but what they wrap is.
        cells = function.__closure__ or ()
        self._later((part for cell in cells for part in _contents(cell)) if foreign else cells, depth, the_programs)
        self._later(function.__defaults__ or (), depth, the_programs)
        self._later((function.__kwdefaults__ or {}).values(), depth, the_programs)
        self._later(vars(function).values(), depth, the_programs)
        if the_programs and not foreign:
            self.owners.append(function)
        if foreign or file.startswith(_LIBRARIES):
            return
        for name, writes in _globals(function.__code__):
            self._later((function.__globals__.get(name),), depth, the_programs)
            if writes and the_programs:
                self.variables.append((function.__globals__, name))


def own_attributes(owner: object) -> dict[str, Any]:
    """The attributes that a program has given an object; of a module, those besides parameters, submodules and whatever
    else every module has."""
    torchs = TORCHS_OWN if isinstance(owner, nn.Module) else ()
    return {name: value for name, value in getattr(owner, "__dict__", {}).items() if name not in torchs}


def slot_values(owner: object) -> dict[Any, Any]:
    """What lies in an object's slots, by the slot; those that are empty are left out."""
    found = {}
    for slot in slots(type(owner)):
        try:
            found[slot] = slot.__get__(owner, type(owner))
        except AttributeError:
            continue
    return found


def _hooks(owner: object, name: str) -> tuple[object, ...]:
    hooks = getattr(owner, name, None)
    return tuple(hooks.values()) if isinstance(hooks, dict) else ()


def _methods(kind: type) -> Iterator[object]:
    """The functions of the program's own classes."""
    for base in kind.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None) or ""
        if is_foreign(file) or file.startswith(_LIBRARIES) or base is object:
            continue
        for member in vars(base).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, FunctionType):
                yield function


def _parts(value: Any) -> Iterator[object] | None:
    """What a function or a container holds; None for any other object."""
    if isinstance(value, MethodType):
        return iter((value.__func__, value.__self__))
    if isinstance(value, (BuiltinFunctionType, MethodWrapperType)):
        # Functions that pybind11 makes are bound to what it notes of them.
        return iter((value.__self__,) if hasattr(type(value.__self__), value.__name__) else ())
    if isinstance(value, functools.partial):
        return iter((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, CellType):
        return _contents(value)
    if isinstance(value, weakref.ref):
        return iter((value(),))
    if isinstance(value, _CACHED_FUNCTION):
        return iter(())
    if isinstance(value, numpy.ndarray):
        return iter(value.flat if value.dtype.hasobject else ())
    if isinstance(value, MappingProxyType):
        return iter(value.values())
    kind: Any = container_type(value) or next((kind for kind in (tuple, frozenset) if isinstance(value, kind)), None)
    if kind is None:
        return None
    return iter((*kind.keys(value), *kind.values(value))) if isinstance(value, dict) else kind.__iter__(value)


def _contents(cell: CellType) -> Iterator[object]:
    try:
        yield cell.cell_contents
    except ValueError:
        # The enclosing function has not assigned the variable yet.
        return


def _globals(code: CodeType) -> Iterator[tuple[str, bool]]:
    """The globals that a function and the functions inside it name, and whether they write to them."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            yield instruction.argval, "LOAD" not in instruction.opname
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)

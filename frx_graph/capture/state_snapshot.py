"""Restore the tensors, random generators and modes of a model after code has run on it.

Restored: values and `requires_grad` of parameters, buffers and input tensors, their gradients, the `training` flag of
every module, and the generators of torch (CPU and CUDA), NumPy and `random`.

Not restored: Python attributes, containers and counters, caches and queues, hooks, optimizers and schedulers, your own
`torch.Generator`s, files, values of tensors without strided memory (sparse, nested, quantized, meta, fake), and
uninitialized parameters. A parameter, buffer or submodule that the program registers stays registered.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from frx_graph.support.torch_internals import FakeTensor, is_view, preserve_version_counter, pytree


@dataclass(frozen=True, slots=True)
class _SavedTensor:
    """A tensor's state. `values` is a copy in host memory, None if the tensor has no strided memory to copy."""

    tensor: Tensor
    values: Tensor | None
    gradient: Tensor | None
    requires_grad: bool

    def restore(self) -> None:
        tensor = self.tensor
        # An in-place write of something that requires a gradient put the tensor into a graph. Views cannot leave one.
        if tensor.requires_grad != self.requires_grad and not is_view(tensor):
            tensor.detach_().requires_grad_(self.requires_grad)
        if tensor.is_leaf:
            tensor.grad = self.gradient
        # An unchanged tensor may be read-only, expanded, or mapped from a file.
        if self.values is not None and not _have_same_bytes(tensor.detach().to("cpu"), self.values):
            with torch.no_grad():
                tensor.copy_(self.values)


class StateSnapshot:
    """State of all modules and tensors that `program` reaches. `parameters` holds each parameter of a module once."""

    def __init__(self, *program: object) -> None:
        modules, tensors = find_state(program)
        self.parameters = tuple(dict.fromkeys(p for module in modules for p in module.parameters(recurse=False)))
        buffers = [b for module in modules for b in module.buffers(recurse=False)]
        distinct = {id(t): t for t in (*self.parameters, *buffers, *tensors) if not is_lazy(t)}
        self._tensors = [_save_tensor(tensor) for tensor in distinct.values()]
        self._modes = [(module, module.training) for module in modules]
        self._registered: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (table, dict(table.items())) for module in modules for table in (module._parameters, module._buffers)
        ]
        self._generators = random.getstate(), numpy.random.get_state()

    def clear_gradients(self) -> None:
        """Set the gradients of parameters and other leaves to None, as `zero_grad` does."""
        for saved in self._tensors:
            if saved.tensor.is_leaf:
                saved.tensor.grad = None

    def restore(self) -> None:
        """Put everything back but torch's own generators. Raises `RuntimeError` for a tensor of another shape."""
        random.setstate(self._generators[0])
        numpy.random.set_state(self._generators[1])
        for module, training in self._modes:
            module.training = training
        for table, before in self._registered:
            for name, tensor in before.items():
                table[name] = tensor
        for saved in self._tensors:
            saved.restore()


@contextlib.contextmanager
def preserve_state(*program: object) -> Iterator[StateSnapshot]:
    """Restore the state of `program` on leaving, also after an exception; gradients are None inside.

    Version counters are restored as well, since an earlier forward of the caller may still wait for its backward, and
    the values that it has saved are the same again.

    Args:
        program: Models or functions that run, and their arguments. Modules and tensors are found in containers that
            `torch.utils._pytree` knows, in closures, defaults and bound arguments, and in attributes of callable
            objects. Globals count if a function names them, itself or through functions in the same file.

    """
    snapshot = StateSnapshot(*program)
    tracked = tuple(saved.tensor for saved in snapshot._tensors if not saved.tensor.is_inference())
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices, device_type="cuda"), preserve_version_counter(tracked):
        snapshot.clear_gradients()
        try:
            yield snapshot
        finally:
            snapshot.restore()


def _save_tensor(tensor: Tensor) -> _SavedTensor:
    valueless = tensor.is_meta or isinstance(tensor, FakeTensor)
    strided = not (valueless or tensor.is_nested or tensor.is_quantized) and tensor.layout is torch.strided
    return _SavedTensor(
        tensor,
        values=tensor.detach().to("cpu", copy=True) if strided else None,
        gradient=tensor.grad if tensor.is_leaf else None,
        requires_grad=tensor.requires_grad,
    )


def _have_same_bytes(one: Tensor, other: Tensor) -> bool:
    """Compare bytes: NaN is not equal to itself, and some types have no comparison."""
    if one.shape != other.shape:
        return False
    plain = [t.resolve_conj().resolve_neg().contiguous() for t in (one, other)]
    # A single element counts as contiguous whatever its stride.
    return torch.equal(*[t.as_strided((t.numel(),), (1,)).view(torch.uint8) for t in plain])


def find_state(program: object) -> tuple[list[nn.Module], list[Tensor]]:
    """Return all modules that `program` reaches, submodules included, and all tensors besides theirs."""
    found: dict[int, object] = {}
    pending = pytree.tree_leaves(program)
    while pending:
        value = pending.pop()
        if id(value) not in found:
            found[id(value)] = value
            pending.extend(pytree.tree_leaves(list(_list_references(value))))
    roots = [value for value in found.values() if isinstance(value, nn.Module)]
    modules = dict.fromkeys(module for root in roots for module in root.modules())
    return list(modules), [value for value in found.values() if isinstance(value, Tensor)]


def _list_references(value: Any) -> Iterable[object]:
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__, *_list_attributes(value.__self__))
    if isinstance(value, FunctionType):
        named = [value.__globals__.get(name) for name in value.__code__.co_names]
        beside = [f for f in named if isinstance(f, FunctionType) and f.__globals__ is value.__globals__]
        return (
            *(cell.cell_contents for cell in value.__closure__ or () if cell != CellType()),  # not yet assigned
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
            *(item for item in named if isinstance(item, (nn.Module, Tensor))),
            *beside,
        )
    return _list_attributes(value) if callable(value) else ()


def _list_attributes(value: Any) -> Iterable[object]:
    """Return the attributes of an object that is neither a class nor a module, whose state is read from its tables."""
    return () if isinstance(value, (nn.Module, type)) else getattr(value, "__dict__", {}).values()

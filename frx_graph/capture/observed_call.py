"""One run of a captured program, as somebody sees it who does not ask how tensors lie in memory.

Two runs whose weights lie differently are the same call if the program calls the same functions on the same shapes,
gets the same numbers and does the same around its graph. Only the graph runs, on tensors of its own, and only torch's
operators of it (`stand_ins.py`): what the program's own tensors hold, and what hangs on them, nobody touches. Random
numbers are drawn in the order of the elements, whatever the order in memory, so that both runs get the same ones.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from frx_graph.capture.captured_graph import InputKind
from frx_graph.capture.graph_outcome import graph_inputs, graph_outcome
from frx_graph.capture.held_tensors import held_tensors_replaced
from frx_graph.capture.kept_modes import modes_put_back
from frx_graph.capture.saved_tensor_hooks import unseen_by_saved_tensor_hooks
from frx_graph.capture.stand_ins import TORCHS_NAMESPACES, StandIns, ramp
from frx_graph.capture.whole_program import WholeProgram

_WEIGHT = InputKind.PARAMETER
_NUMBER_TOLERANCE = 1e-3
"""Relative, of numbers that Python has read from tensors: they carry the rounding of what was computed before."""

_LAYOUT_ONLY = "torch.Tensor.contiguous"
"""Changes no value: a program may call it or not, by how a tensor lies."""
_TOLD_MEMORY = frozenset(
    {"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "set_", "resize_", "resize_as_"}
    | {"untyped_storage", "storage", "_typed_storage", "data_ptr"}
)
"""What is told places in memory, or tells them."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of torch's that the program called. `operands` are shapes and types of tensors, and all other
    arguments that are constants; of a function that sees how tensors lie, their strides besides. `numbers` are those
    arguments that may carry rounding."""

    function: str
    operands: tuple[object, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class ObservedCall:
    """`values` are copies, by name, of what the graph returned, of the gradients that go through it, and of arguments
    and buffers, which it may have written. `around` is what the program does besides, and what it reads.
    `gradient_strides` are those of the gradients of inputs that are no parameters; `written_together` as in
    `GraphOutcome`."""

    calls: tuple[Call, ...]
    values: Mapping[str, Tensor]
    around: object
    written_together: frozenset[frozenset[int]]
    gradient_strides: Mapping[str, tuple[int, ...]]


def observed_call(
    program: WholeProgram, *, train: bool, disturbance: AbstractContextManager[Any] | None = None
) -> ObservedCall:
    """Run the graph of `program` in the grad mode of the moment, and with `train` its backward.

    `disturbance` is a mode that it runs in. Raises whatever an operator raises, and `ValueError` for tensors of another
    kind than dense ones.
    """
    calls = _Calls()
    with _left_alone(), held_tensors_replaced(program.dynamo, _cloned):
        outcome = graph_outcome(program.dynamo, graph_inputs(program.inputs))
        names = [f"{given.kind} {i}" for i, given in enumerate(program.noted.inputs)]
        inputs = dict(zip(names, _own_inputs(program, outcome.written), strict=True))
        with disturbance or nullcontext(), _DrawsInOrder(), StandIns():
            with calls:
                returned = program.dynamo.forward(*inputs.values())
            leaves = pytree.tree_leaves(returned)
            values = {f"output {i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
            if train:
                values |= _gradients(list(values.values()), inputs)
        others = [name for name, given in zip(names, program.noted.inputs, strict=True) if given.kind is not _WEIGHT]
        kept = {*others, *(names[i] for i in outcome.written)}
        values |= {name: value for name, value in inputs.items() if name in kept and isinstance(value, Tensor)}
        copies = {name: value.detach().clone() for name, value in values.items() if value.layout is torch.strided}
    gradients = {name: values[f"gradient of {name}"] for name in others if f"gradient of {name}" in values}
    strides = {name: tuple(gradient.stride()) for name, gradient in gradients.items()}
    read = tuple(given.path for given in program.noted.inputs)
    constants = tuple(_constant(value) for value in program.inputs if not isinstance(value, Tensor))
    around = (program.code, read, constants)
    return ObservedCall(tuple(calls.found), copies, around, outcome.written_together, strides)


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    """Random numbers, modes, autocast's converted weights and the user's hooks on what is saved."""
    with torch.random.fork_rng(), modes_put_back(), unseen_by_saved_tensor_hooks():
        torch.set_autocast_cache_enabled(False)
        yield


def _cloned(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def _own_inputs(program: WholeProgram, written: Collection[int]) -> list[Any]:
    """Tensors with the values and strides of the program's own, which nobody else knows. Those that the graph writes
    into, by position, lie in memory of their own, and share it as the program's do."""
    memories = {program.inputs[i].untyped_storage()._cdata for i in written}
    copied: dict[int, Tensor] = {}

    def own(value: Any) -> Any:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value.node.hint
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        if storage._cdata not in memories and not value.is_inference():
            return value.detach().requires_grad_(value.requires_grad)
        if value.is_conj() or value.is_neg():
            raise ValueError("it writes into a conjugate or negative view")
        if storage._cdata not in copied:
            with torch.no_grad():
                flat = value.detach().as_strided((storage.nbytes() // value.element_size(),), (1,), 0)
                copied[storage._cdata] = flat.clone()
        view = copied[storage._cdata].view(value.dtype)
        return view.as_strided(value.shape, value.stride(), value.storage_offset()).requires_grad_(value.requires_grad)

    return [own(value) for value in program.inputs]


def calls_differ(one: ObservedCall, other: ObservedCall) -> str | None:
    """Where the program has called other functions, written into other values, or returned other constants; None if it
    has not."""
    for first, second in zip(one.calls, other.calls, strict=False):
        if first.function != second.function:
            return f"it calls {second.function} in place of {first.function}"
        if first.operands != second.operands or not _close(first.numbers, second.numbers):
            return f"it calls {first.function} otherwise"
    if len(one.calls) != len(other.calls):
        return f"it makes {len(other.calls)} calls in place of {len(one.calls)}"
    if one.written_together != other.written_together:
        return "what it writes into shares memory with other values"
    if one.gradient_strides != other.gradient_strides:
        return "a gradient of what it is given would lie otherwise"
    return None if one.around == other.around else "what it does besides computing differs"


def _close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(one, other, rel_tol=_NUMBER_TOLERANCE, abs_tol=_NUMBER_TOLERANCE)
        or (math.isnan(one) and math.isnan(other))
        for one, other in zip(ours, theirs, strict=True)
    )


def _gradients(outputs: Sequence[Tensor], inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    roots = list({id(value): value for value in outputs if value.grad_fn is not None}.values())
    wanted = {name: leaf for name, leaf in inputs.items() if isinstance(leaf, Tensor) and leaf.requires_grad}
    if not roots or not wanted:
        return {}
    # Ones would cancel out behind a normalisation.
    tangents = [ramp(root) for root in roots]
    found = torch.autograd.grad(roots, list(wanted.values()), tangents, allow_unused=True)
    return {f"gradient of {name}": value for name, value in zip(wanted, found, strict=True) if value is not None}


class _Calls(TorchFunctionMode):
    """Notes what is called from Python and makes tensors or changes them: what torch calls inside follows from that."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and note it."""
        kwargs = kwargs or {}
        name, sees = _name(func), sees_memory(func)
        # Before the call: it may move its operands.
        call = _noted(name, (args, kwargs), strides=sees)
        result = func(*args, **kwargs)
        makes = result is None or any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result))
        if (makes or sees) and name != _LAYOUT_ONLY and not name.endswith(".__get__"):
            self.found.append(call)
        return result


def _name(function: Any) -> str:
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return str(function)
    return resolve_name(function) or str(getattr(function, "__name__", function))


def sees_memory(function: Any) -> bool:
    """True for what is told how its operands lie, and for operators of which nothing is known."""
    if isinstance(function, OpOverload):
        return function.namespace not in TORCHS_NAMESPACES or function.overloadpacket.__name__ in _TOLD_MEMORY
    if isinstance(function, OpOverloadPacket):
        return function._qualified_op_name.partition("::")[0] not in TORCHS_NAMESPACES
    return getattr(function, "__name__", "") in _TOLD_MEMORY


def _noted(name: str, arguments: Any, *, strides: bool) -> Call:
    leaves = pytree.tree_leaves(arguments)
    operands: list[object] = []
    numbers: list[float] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            operands.append((tuple(leaf.shape), leaf.dtype))
            if strides and leaf.layout is torch.strided:
                operands.append((tuple(leaf.stride()), leaf.storage_offset()))
        elif isinstance(leaf, (float, complex)):
            number = complex(leaf)
            numbers.extend((number.real, number.imag))
        else:
            operands.append(_constant(leaf))
    return Call(name, tuple(operands), tuple(numbers))


def _constant(value: object) -> object:
    """Of an object nothing but its type can be compared: it may be made anew in each call."""
    known = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
    return value if isinstance(value, known) else type(value)


class _DrawsInOrder(TorchDispatchMode):
    """Draws random numbers for operands in any order of dimensions as for plain ones."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`; what it draws is drawn again into plain memory, and copied."""
        kwargs = kwargs or {}
        draws = isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags
        if not draws or all(map(_is_plain, pytree.tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        plain = pytree.tree_map_only(
            Tensor, lambda value: value.clone(memory_format=torch.contiguous_format), (args, kwargs)
        )
        with _generators_put_back(kwargs.get("generator")):
            result = func(*args, **kwargs)
        drawn = func(*plain[0], **plain[1])
        for ours, theirs in zip(pytree.tree_leaves(result), pytree.tree_leaves(drawn), strict=True):
            if isinstance(ours, Tensor) and ours is not theirs:
                ours.copy_(theirs)
        return result


def _is_plain(value: object) -> bool:
    return not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_contiguous()


@contextlib.contextmanager
def _generators_put_back(given: torch.Generator | None) -> Iterator[None]:
    state = None if given is None else given.get_state()
    with torch.random.fork_rng():
        yield
    if given is not None and state is not None:
        given.set_state(state)

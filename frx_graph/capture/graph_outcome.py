"""What a Dynamo graph does to its inputs and how its outputs lie in memory, for inputs of given strides: it is run on
fake tensors, its in-place operators included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.convert_frame import compile_lock
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from frx_graph.capture.held_tensors import held_tensors_replaced
from frx_graph.capture.kept_modes import modes_put_back
from frx_graph.capture.saved_tensor_hooks import unseen_by_saved_tensor_hooks


@dataclass(frozen=True, slots=True)
class InputTensor:
    """A tensor that a graph is given, without its values. `identity` is the real tensor's `id`; `number` is the value
    of one that Dynamo has made of a Python float to which it does not specialise."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    parameter: bool
    identity: int
    number: float | None = None


@dataclass(frozen=True, slots=True)
class GraphOutcome:
    """`shapes` and `strides` of every output, in elements; None for what is no tensor. `written` are the inputs that
    the graph writes into or moves to other memory, `returned` those whose memory an output shares, both by position;
    `shared` are the outputs that share memory with another output or with an input. `memories` are all inputs and
    outputs by their memory, and `written_together` the values, by the numbers of their nodes, that lie in one memory
    that is written into: those that see a write. `writes_held` is true where it writes into tensors that it holds
    itself, `draws` where random numbers are drawn for a tensor: in the order in which it lies."""

    shapes: tuple[tuple[int, ...] | None, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    written: frozenset[int]
    returned: frozenset[int]
    shared: frozenset[int]
    memories: frozenset[frozenset[int]]
    written_together: frozenset[frozenset[int]]
    writes_held: bool
    draws: bool

    def writes_as(self, other: GraphOutcome) -> bool:
        """Whether its writes are seen in the same values."""
        return (self.written, self.written_together) == (other.written, other.written_together)

    def shares_memory_as(self, other: GraphOutcome) -> bool:
        """Whether whoever writes, the graph or its caller, writes into the same values."""
        return self.writes_as(other) and self.memories == other.memories


def graph_inputs(example_inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What Dynamo hands to a backend as records: tensors without their values, symbolic numbers as those of the
    example. Raises `ValueError` for tensors of other layouts than strided, and for subclasses."""
    return tuple(_input(example) for example in example_inputs)


def _input(example: Any) -> Any:
    if isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return example.node.hint
    if not isinstance(example, Tensor):
        return example
    if type(example) not in (Tensor, nn.Parameter, nn.Buffer) or example.layout is not torch.strided:
        raise ValueError("it is given tensors of another kind")
    return InputTensor(
        shape=tuple(example.shape),
        strides=tuple(example.stride()),
        dtype=example.dtype,
        device=example.device,
        requires_grad=example.requires_grad,
        parameter=isinstance(example, nn.Parameter),
        identity=id(example),
        number=_number(example),
    )


def _number(example: Tensor) -> float | None:
    wraps = example.dim() == 0 and example.dtype is torch.float64 and example.device.type == "cpu"
    return float(example) if wraps and type(example) is Tensor and not example.requires_grad else None


def graph_outcome(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> GraphOutcome:
    """Run `dynamo` on fakes of `inputs`, in the grad and autocast modes of the moment. Raises whatever an operator that
    cannot run on them raises."""
    with _on_fakes(dynamo) as held:
        fakes = [_fake(value) if isinstance(value, InputTensor) else value for value in inputs]
        places: dict[int, set[int]] = {}
        for index, fake in enumerate(fakes):
            if isinstance(fake, Tensor):
                places.setdefault(_memory(fake), set()).add(index)
        watch = _Writes()
        # What is still alive shares no number with anything else.
        interpreter = _Values(dynamo, garbage_collect_values=False)
        with watch:
            outputs = pytree.tree_leaves(interpreter.run(*fakes))
    memories = [_memory(value) if isinstance(value, Tensor) else None for value in outputs]
    moved = {
        index
        for index, (fake, value) in enumerate(zip(fakes, inputs, strict=True))
        if isinstance(fake, Tensor) and (tuple(fake.shape), tuple(fake.stride())) != (value.shape, value.strides)
    }
    return GraphOutcome(
        shapes=tuple(tuple(value.shape) if isinstance(value, Tensor) else None for value in outputs),
        strides=tuple(tuple(value.stride()) if isinstance(value, Tensor) else None for value in outputs),
        writes_held=any(_memory(value) in watch.memories for value in held),
        written=frozenset(moved.union(*(places.get(memory, set()) for memory in watch.memories))),
        returned=frozenset().union(*(places.get(memory, set()) for memory in memories if memory is not None)),
        shared=frozenset(
            index
            for index, memory in enumerate(memories)
            if memory is not None and (memory in places or memories.count(memory) > 1)
        ),
        memories=_grouped([*(_memory(fake) if isinstance(fake, Tensor) else None for fake in fakes), *memories]),
        written_together=_grouped(
            [value.memory if value.memory in watch.memories else None for value in _kept(interpreter.values)]
        ),
        draws=watch.draws,
    )


def _grouped(memories: Sequence[int | None]) -> frozenset[frozenset[int]]:
    """The positions of equal numbers."""
    groups: dict[int, set[int]] = {}
    for position, memory in enumerate(memories):
        if memory is not None:
            groups.setdefault(memory, set()).add(position)
    return frozenset(map(frozenset, groups.values()))


@contextlib.contextmanager
def _on_fakes(dynamo: fx.GraphModule) -> Iterator[tuple[Tensor, ...]]:
    """Gives the fakes of what the graph holds itself."""
    # Numbers that are read from tensors are symbols: their values are not known.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(allow_scalar_outputs=True))
    fake = partial(mode.from_tensor, static_shapes=True)
    # What an interpreter says of its nodes, another thread that compiles would take for what it traces.
    with (
        compile_lock,
        held_tensors_replaced(dynamo, fake) as held,
        mode,
        modes_put_back(),
        unseen_by_saved_tensor_hooks(),
    ):
        yield held


@dataclass(frozen=True, slots=True)
class NodeValue:
    """How a node's tensor lies in memory, in elements, and in which: equal numbers are one. `operators` are those that
    make it."""

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    operators: frozenset[OpOverload]


def node_values(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> dict[fx.Node, NodeValue]:
    """Every node of `dynamo` whose value is a tensor, in the order of the graph, run on fakes of `inputs`."""
    with _on_fakes(dynamo):
        fakes = [_fake(value) if isinstance(value, InputTensor) else value for value in inputs]
        # What is still alive shares no number with anything else.
        interpreter = _Values(dynamo, garbage_collect_values=False)
        interpreter.run(*fakes)
    return interpreter.values


def _kept(values: Mapping[fx.Node, NodeValue]) -> list[NodeValue]:
    """Without what is only asked for a layout, which a program may do or not, by how a tensor lies."""
    return [value for node, value in values.items() if node.target not in ("contiguous", Tensor.contiguous)]


class _Values(fx.Interpreter):
    """Notes how each value lay in memory when it was made; operators that write may move it later."""

    def __init__(self, module: fx.GraphModule, *, garbage_collect_values: bool) -> None:
        super().__init__(module, garbage_collect_values=garbage_collect_values)
        self.values: dict[fx.Node, NodeValue] = {}

    def run_node(self, n: fx.Node) -> Any:
        """As torch's."""
        with _Operators() as seen:
            value = super().run_node(n)
        if isinstance(value, Tensor) and n.op != "output":
            operators = frozenset(seen.operators)
            self.values[n] = NodeValue(_memory(value), tuple(value.shape), tuple(value.stride()), operators)
        return value


class _Operators(TorchDispatchMode):
    """Notes what operators are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: set[OpOverload] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, OpOverload):
            self.operators.add(func)
        return _as_run(func, args, func(*args, **(kwargs or {})))


_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})


def _as_run(operator: Any, args: Sequence[Any], result: Any) -> Any:
    """What a fake operator gives, with the strides of the real one. Fakes miss some of dimensions of size 1 (torch
    2.15): those of group norms, which make a new tensor in the format that their image suggests, and of views."""
    if operator is torch.ops.aten.native_group_norm.default and args[0].dim() in (4, 5):
        like = torch.empty_like(args[0], memory_format=suggest_memory_format(args[0]))
        return (result[0].as_strided(like.shape, like.stride()), *result[1:])
    if operator in _VIEWS and 1 in result.shape:
        with _disable_current_modes():
            source = torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[0].dtype, device="meta")
            strides = source.view(result.shape).stride()
        return result.as_strided(result.shape, strides, result.storage_offset())
    return result


def _fake(value: InputTensor) -> Tensor:
    if value.number is not None:
        return torch.tensor(value.number, dtype=value.dtype)
    fake = torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device=value.device)
    if value.parameter:
        return nn.Parameter(fake, requires_grad=value.requires_grad)
    return fake.requires_grad_(value.requires_grad)


def _memory(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)


class _Writes(TorchDispatchMode):
    """Notes the memory that operators write into, by their schemas: writes through `.data` count as well. Notes, too,
    whether one draws random numbers for a tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memories: set[int] = set()
        self.draws = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload):
            self.memories.update(_memory(value) for value in _written(func, args, kwargs))
            given = any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((args, kwargs)))
            self.draws = self.draws or (given and torch.Tag.nondeterministic_seeded in func.tags)
        return _as_run(func, args, func(*args, **kwargs))


_STATISTICS = ("running_mean", "running_var")
"""What batch normalisation writes though `native_batch_norm`'s schema does not say so."""


def _written(operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for position, argument in enumerate(operator._schema.arguments):
        declared = argument.alias_info is not None and argument.alias_info.is_write
        if declared or argument.name in _STATISTICS:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor))

"""Make a region's primitives once, with packed weights and memory of their own, and run them.

Images between steps have the layouts that oneDNN chooses, which are blocked where that is faster. Values that are never
needed at the same time share memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from frx_graph.ops.onednn.library import (
    ALGORITHMS,
    ARGUMENTS,
    DIRECT_CONVOLUTION,
    GIVEN_SCRATCHPAD,
    INFERENCE,
    POST_OPERATION,
    SOURCES,
    ExecutionArgument,
    Handle,
    Library,
    OneDnnError,
    make_sizes,
)
from frx_graph.ops.onednn.steps import (
    Concatenation,
    Convolution,
    Elementwise,
    Following,
    Operand,
    Pooling,
    Product,
    Region,
    Reshape,
    Step,
    TensorLayout,
)

_ALIGNMENT = 64
FEW_CHANNELS = 4
"""An image of fewer channels stays as it is: oneDNN has kernels for that, and a block of 16 would be mostly empty."""


@dataclass(eq=False, slots=True)
class _Buffer:
    """Memory of one or several views. `first` and `last` are the steps between which it is in use."""

    size: int
    first: int
    last: int
    views: list[Handle] = field(default_factory=list)
    placed: bool = True
    """False for memory that each call brings along."""


@dataclass(frozen=True, eq=False, slots=True)
class _Value:
    shape: tuple[int, ...]
    descriptor: Handle
    memory: Handle
    buffer: _Buffer


_Arguments = list[tuple[int, "Handle"]]


class Program:
    """A region that can be run. Calls from several threads take turns."""

    def __init__(self, library: Library, region: Region, constants: Sequence[Tensor]) -> None:
        """Make the primitives and pack the constants. Raises `OneDnnError` for what oneDNN has no fast kernel for."""
        self._library = library
        self._region = region
        self._constants = constants
        self._lock = threading.Lock()
        self._kept: list[Any] = []
        self._calls: list[tuple[Any, Any, int, Any]] = []
        self._buffers: dict[_Buffer, None] = {}
        self._inputs: list[_Value] = []
        self._values: list[_Value] = []
        with torch.no_grad():
            for given in region.inputs:
                descriptor = library.describe(given.shape, given.strides)
                self._inputs.append(self._add_value(given.shape, descriptor, placed=False))
            self._values += self._inputs
            for step in region.steps:
                self._values.append(self._add_step(step))
            self._results = [self._add_result(*found) for found in zip(region.outputs, region.results, strict=True)]
            self._arena = self._place_buffers()

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the region's results. The inputs have the strides of the description."""
        region = self._region
        results = [each.allocate() for each in region.results]
        execute = self._library.execute
        with self._lock:
            for value, tensor in zip((*self._inputs, *self._results), (*inputs, *results), strict=True):
                self._set_address(value.buffer, tensor.data_ptr())
            status = sum(execute(*call) for call in self._calls)
        if status:
            raise OneDnnError(f"a primitive of oneDNN failed with status {status}")
        return results

    def _set_address(self, buffer: _Buffer, address: int) -> None:
        for view in buffer.views:
            self._library.call("memory_set_data_handle", view, address)

    def _add_step(self, step: Step) -> _Value:
        match step:
            case Convolution():
                return self._add_convolution(step)
            case Product():
                return self._add_product(step)
            case Pooling():
                return self._add_pooling(step)
            case Elementwise():
                return self._add_elementwise(self._values[step.value], step.following)
            case Concatenation():
                return self._add_concatenation(step)
            case Reshape():
                return self._view(self._make_plain(self._values[step.value]), step.shape)

    def _add_convolution(self, step: Convolution) -> _Value:
        library, image = self._library, self._values[step.image]
        weight = self._constants[step.weight].contiguous()
        bias = None if step.bias is None else self._constants[step.bias].reshape(-1)
        groups = step.groups
        if groups > 1:
            weight = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
        wanted = image.descriptor if image.shape[1] < FEW_CHANNELS else library.describe(image.shape)
        described = library.describe(weight.shape), None if bias is None else library.describe(bias.shape, (1,))

        def describe(attributes: Handle) -> Handle:
            return library.describe_primitive(
                "convolution_forward",
                library.engine,
                INFERENCE,
                DIRECT_CONVOLUTION,
                wanted,
                described[0],
                described[1],
                library.describe(step.shape),
                make_sizes(step.stride),
                make_sizes([size - 1 for size in step.dilation]),
                make_sizes(step.before),
                make_sizes(step.behind),
                attributes,
            )

        return self._add_fused(image, weight, bias, step.shape, step.following, describe)

    def _add_product(self, step: Product) -> _Value:
        library, rows = self._library, self._make_plain(self._values[step.rows])
        weight = self._constants[step.weight]
        bias = None if step.bias is None else self._constants[step.bias].reshape(1, -1)
        plain = library.describe(step.shape, _order_plainly(step.shape))
        described = (
            library.describe(weight.shape),
            None if bias is None else library.describe(bias.shape, bias.stride()),
        )

        def describe(attributes: Handle) -> Handle:
            return library.describe_primitive(
                "matmul",
                library.engine,
                rows.descriptor,
                described[0],
                described[1],
                plain,
                attributes,
            )

        return self._add_fused(rows, weight, bias, step.shape, step.following, describe)

    def _add_fused(
        self,
        source: _Value,
        weight: Tensor,
        bias: Tensor | None,
        shape: tuple[int, ...],
        following: Sequence[Following],
        describe: Any,
    ) -> _Value:
        """Add a convolution or product with as many of the following operations as its kernel takes."""
        library = self._library
        for count in range(len(following), -1, -1):
            try:
                attributes, operands = self._make_attributes(following[:count], shape)
                primitive = describe(attributes)
            except OneDnnError:
                if count == 0:
                    raise
                continue
            if count == 0 or not self._is_reference(primitive):
                break
        self._refuse_reference(primitive)
        source = self._convert(source, library.query(primitive, "source"))
        packed = self._pack(weight, library.query(primitive, "weights"))
        result = self._add_value(shape, library.query(primitive, "destination"))
        arguments = [
            (ARGUMENTS["source"], source.memory),
            (ARGUMENTS["weights"], packed),
            (ARGUMENTS["destination"], result.memory),
            *operands,
        ]
        if bias is not None:
            arguments.append((ARGUMENTS["bias"], self._hold(bias.contiguous())))
        self._add_call(primitive, arguments, source, result, *self._list_operands(following[:count]))
        return self._add_elementwise(result, following[count:])

    def _add_pooling(self, step: Pooling) -> _Value:
        library, image = self._library, self._values[step.image]
        primitive = library.describe_primitive(
            "pooling_forward",
            library.engine,
            INFERENCE,
            ALGORITHMS[step.algorithm],
            image.descriptor,
            library.describe(step.shape),
            make_sizes(step.stride),
            make_sizes(step.window),
            make_sizes([0] * len(step.window)),
            make_sizes(step.before),
            make_sizes(step.behind),
            self._make_attributes((), step.shape)[0],
        )
        self._refuse_reference(primitive)
        result = self._add_value(step.shape, library.query(primitive, "destination"))
        arguments = [(ARGUMENTS["source"], image.memory), (ARGUMENTS["destination"], result.memory)]
        self._add_call(primitive, arguments, image, result)
        return result

    def _add_elementwise(self, value: _Value, following: Sequence[Following]) -> _Value:
        """Add the operations as primitives, each with what oneDNN can do behind it in one pass."""
        library = self._library
        if not following:
            return value
        first, rest = following[0], following[1:]
        result = self._add_value(value.shape, value.descriptor)
        sources = [value]
        arguments = [(ARGUMENTS["source"], value.memory), (ARGUMENTS["destination"], result.memory)]
        # A primitive for an activation does nothing else.
        together = rest if first.operand is not None and _are_activations(rest) else ()
        attributes, operands = self._make_attributes(together, value.shape)
        if first.operand is None:
            primitive = library.describe_primitive(
                "eltwise_forward",
                library.engine,
                INFERENCE,
                ALGORITHMS[first.algorithm],
                value.descriptor,
                value.descriptor,
                ctypes.c_float(first.alpha),
                ctypes.c_float(first.beta),
                attributes,
            )
        else:
            descriptor, memory, other = self._read_operand(first.operand, value)
            primitive = library.describe_primitive(
                "binary",
                library.engine,
                ALGORITHMS[first.algorithm],
                value.descriptor,
                descriptor,
                value.descriptor,
                attributes,
            )
            arguments.append((ARGUMENTS["second_source"], memory))
            sources += [] if other is None else [other]
        self._refuse_reference(primitive)
        self._add_call(primitive, [*arguments, *operands], *sources, result)
        return self._add_elementwise(result, rest[len(together) :])

    def _add_concatenation(self, step: Concatenation) -> _Value:
        library, values = self._library, [self._values[number] for number in step.values]
        primitive = self._describe_concatenation(values, step.dimension)
        if self._is_reference(primitive):
            # There is no fast kernel for values in several layouts.
            values = [self._make_plain(value) for value in values]
            primitive = self._describe_concatenation(values, step.dimension)
        self._refuse_reference(primitive)
        result = self._add_value(step.shape, library.query(primitive, "destination"))
        arguments = [(SOURCES + index, value.memory) for index, value in enumerate(values)]
        self._add_call(primitive, [*arguments, (ARGUMENTS["destination"], result.memory)], *values, result)
        return result

    def _describe_concatenation(self, values: Sequence[_Value], dimension: int) -> Handle:
        library = self._library
        sources = (ctypes.c_void_p * len(values))(*(value.descriptor.pointer.value for value in values))
        attributes, _ = self._make_attributes((), ())
        arguments = library.engine, None, len(values), dimension, sources, attributes
        return library.make("concat_primitive_desc", *arguments, destroyed_as="primitive_desc")

    def _add_result(self, number: int, wanted: TensorLayout) -> _Value:
        """Make a value a result: in the caller's memory, in the strides that the graph was traced with."""
        value = self._values[number]
        descriptor = self._library.describe(wanted.shape, wanted.strides)
        buffer = value.buffer
        if self._library.are_equal(value.descriptor, descriptor) and buffer.placed:
            buffer.placed = False
            return value
        result = self._add_value(wanted.shape, descriptor, placed=False)
        self._reorder(value, result)
        return result

    def _make_attributes(self, following: Sequence[Following], shape: Sequence[int]) -> tuple[Handle, _Arguments]:
        """Return the attributes for operations that a primitive does with its result, and their operands.

        Primitives get memory for what they note down: oneDNN's own belongs to the thread that made the primitive.
        """
        library = self._library
        attributes, operations = library.make("primitive_attr"), library.make("post_ops")
        operands: _Arguments = []
        for index, one in enumerate(following):
            if one.operand is None:
                library.call("post_ops_append_eltwise", operations, ALGORITHMS[one.algorithm], one.alpha, one.beta)
                continue
            descriptor, memory, _ = self._read_operand(one.operand, None, len(shape))
            library.call("post_ops_append_binary", operations, ALGORITHMS[one.algorithm], descriptor)
            operands.append((POST_OPERATION * (index + 1) | ARGUMENTS["second_source"], memory))
        library.call("primitive_attr_set_post_ops", attributes, operations)
        library.call("primitive_attr_set_scratchpad_mode", attributes, GIVEN_SCRATCHPAD)
        return attributes, operands

    def _read_operand(
        self, operand: Operand, beside: _Value | None, dimensions: int = 0
    ) -> tuple[Handle, Handle, _Value | None]:
        """Return an operand's descriptor and memory, and the value if it is none of the constants; a value of the same
        shape as the one `beside` it gets the same layout."""
        if operand.constant:
            tensor = self._constants[operand.number].contiguous()
            rank = dimensions if beside is None else len(beside.shape)
            tensor = tensor.view((1,) * (rank - tensor.dim()) + tuple(tensor.shape)[max(0, tensor.dim() - rank) :])
            return self._library.describe(tensor.shape, tensor.stride()), self._hold(tensor), None
        value = self._values[operand.number]
        if beside is not None and value.shape == beside.shape:
            value = self._convert(value, beside.descriptor)
        return value.descriptor, value.memory, value

    def _list_operands(self, following: Sequence[Following]) -> list[_Value]:
        operands = (one.operand for one in following)
        return [self._values[each.number] for each in operands if each is not None and not each.constant]

    def _convert(self, value: _Value, descriptor: Handle) -> _Value:
        if self._library.are_equal(value.descriptor, descriptor):
            return value
        result = self._add_value(value.shape, descriptor)
        self._reorder(value, result)
        return result

    def _make_plain(self, value: _Value) -> _Value:
        return self._convert(value, self._library.describe(value.shape, _order_plainly(value.shape)))

    def _view(self, value: _Value, shape: tuple[int, ...]) -> _Value:
        descriptor = self._library.describe(shape, _order_plainly(shape))
        memory = self._make_memory(descriptor, 0)
        value.buffer.views.append(memory)
        return _Value(shape, descriptor, memory, value.buffer)

    def _reorder(self, source: _Value, target: _Value) -> None:
        arguments = [(ARGUMENTS["source"], source.memory), (ARGUMENTS["destination"], target.memory)]
        attributes, _ = self._make_attributes((), source.shape)
        primitive = self._describe_reorder(source.descriptor, target.descriptor, attributes)
        self._add_call(primitive, arguments, source, target)

    def _describe_reorder(self, source: Handle, target: Handle, attributes: Handle | None) -> Handle:
        engine = self._library.engine
        return self._library.describe_primitive("reorder", source, engine, target, engine, attributes)

    def _pack(self, weight: Tensor, descriptor: Handle) -> Handle:
        """Return memory with the weight in the layout that a primitive asks for."""
        library = self._library
        given = library.describe(weight.shape, weight.stride())
        if library.are_equal(given, descriptor):
            return self._hold(weight)
        packed = self._make_room(library.count_bytes(descriptor))
        target = self._make_memory(descriptor, packed.data_ptr())
        self._kept.append(packed)
        source = self._make_memory(given, weight.data_ptr())
        primitive = library.make("primitive", self._describe_reorder(given, descriptor, None))
        arguments = _list_arguments([(ARGUMENTS["source"], source), (ARGUMENTS["destination"], target)])
        library.call("primitive_execute", primitive, library.stream, 2, arguments)
        return target

    def _hold(self, tensor: Tensor) -> Handle:
        """Return memory that is a constant's own."""
        self._kept.append(tensor)
        return self._make_memory(self._library.describe(tensor.shape, tensor.stride()), tensor.data_ptr())

    def _make_memory(self, descriptor: Handle, address: int) -> Handle:
        memory = self._library.make("memory", descriptor, self._library.engine, ctypes.c_void_p(address))
        self._kept.append(memory)
        return memory

    def _make_room(self, size: int) -> Tensor:
        room = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device="cpu")
        return room[-room.data_ptr() % _ALIGNMENT :]

    def _add_value(self, shape: tuple[int, ...], descriptor: Handle, *, placed: bool = True) -> _Value:
        now = len(self._calls)
        memory = self._make_memory(descriptor, 0)
        size = self._library.count_bytes(descriptor)
        return _Value(tuple(shape), descriptor, memory, _Buffer(size, now, now, [memory], placed))

    def _add_call(self, description: Handle, arguments: _Arguments, *used: _Value) -> None:
        scratchpad = self._library.query(description, "scratchpad")
        if size := self._library.count_bytes(scratchpad):
            noted = self._add_value((size,), scratchpad)
            arguments, used = [*arguments, (ARGUMENTS["scratchpad"], noted.memory)], (*used, noted)
        for value in used:
            value.buffer.last = len(self._calls)
            self._buffers[value.buffer] = None
        primitive, listed = self._library.make("primitive", description), _list_arguments(arguments)
        self._kept += (primitive, listed, description)
        address = ctypes.cast(listed, ctypes.c_void_p)
        self._calls.append((primitive, self._library.stream, len(arguments), address))

    def _is_reference(self, primitive: Handle) -> bool:
        return self._library.name_kernel(primitive).startswith("ref")

    def _refuse_reference(self, primitive: Handle) -> None:
        """Raise `OneDnnError` for a kernel that is there for completeness, and slow."""
        if self._is_reference(primitive):
            raise OneDnnError("oneDNN has no fast kernel for one of the operators")

    def _place_buffers(self) -> Tensor:
        """Give each value a place: the largest first, where no other is that is needed at the same time."""
        placed: list[tuple[int, int, _Buffer]] = []
        for buffer in sorted((one for one in self._buffers if one.placed), key=lambda one: -one.size):
            size = -(-buffer.size // _ALIGNMENT) * _ALIGNMENT
            start = 0
            others = (one for one in placed if one[2].first <= buffer.last and buffer.first <= one[2].last)
            for begin, end, _ in sorted(others, key=lambda one: one[:2]):
                if start + size <= begin:
                    break
                start = max(start, end)
            placed.append((start, start + size, buffer))
        arena = self._make_room(max((end for _, end, _ in placed), default=0))
        for start, _, buffer in placed:
            self._set_address(buffer, arena.data_ptr() + start)
        return arena


def _are_activations(following: Sequence[Following]) -> bool:
    return all(one.operand is None for one in following)


def _order_plainly(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(torch.empty(tuple(shape), device="meta").stride())


def _list_arguments(arguments: _Arguments) -> Any:
    listed = [ExecutionArgument(number, memory.pointer.value) for number, memory in arguments]
    return (ExecutionArgument * len(listed))(*listed)

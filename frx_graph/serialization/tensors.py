"""Write the inputs of a graph as one file of storages and a list of tensors in them, and read them back.

A storage is written once, so that tensors that share memory share it again. A process that reads the file maps it: all
processes use the same memory until one of them writes. That process then gets a private page, so none can change the
file (`MAP_PRIVATE`). Storages stay separate there, since AOTAutograd treats tensors of one storage as aliases.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from frx_graph.errors import SerializationError
from frx_graph.serialization.schema import Kind, StorageDocument, TensorDocument
from frx_graph.support.torch_internals import (
    FakeTensor,
    get_base,
    get_storage_id,
    has_hooks,
    is_functorch_tensor,
    is_view,
)

_PLAIN = (Tensor, nn.Parameter)
_STATIC = "_dynamo_static_input_type"
"""Dynamo's mark of tensors whose address stays the same, which `mark_static_address` sets."""


@dataclass
class TensorWriter:
    """Describe tensors and gather their storages, to be written by `write`."""

    tensors: list[TensorDocument] = field(default_factory=list)
    storages: list[StorageDocument] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    _memories: list[torch.UntypedStorage] = field(default_factory=list)
    _bases: list[Tensor] = field(default_factory=list)

    def add_inputs(self, names: Sequence[str], inputs: Sequence[Any]) -> None:
        """Describe the inputs of a graph, once. Raises `SerializationError` for those that cannot be written."""
        indices = {id(value): index for index, value in enumerate(inputs)}
        if len(indices) != len(inputs):
            raise SerializationError("two inputs are the same tensor")
        for name, value in zip(names, inputs, strict=True):
            try:
                self.tensors.append(self._describe_tensor(value, classify_input(value), indices, len(inputs)))
            except SerializationError as error:
                raise SerializationError(f"the input {name}: {error.message}", error.hint) from error
        # A base is not a view itself.
        self.tensors.extend(self._describe_tensor(base, "base", {}, 0) for base in self._bases)
        self._check_disjoint()

    def write(self, file: BinaryIO) -> None:
        """Write the storages into `file`, which is empty. Raises `OSError`."""
        for document, memory in zip(self.storages, self._memories, strict=True):
            file.seek(document.offset)
            file.write(torch.empty(0, dtype=torch.uint8).set_(memory.cpu()).numpy().data)
        file.truncate(self.nbytes)

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return max((storage.offset + storage.nbytes for storage in self.storages), default=0)

    def _describe_tensor(self, tensor: Tensor, kind: Kind, indices: dict[int, int], known: int) -> TensorDocument:
        _check_serializable(tensor)
        return TensorDocument(
            kind=kind,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            storage=self._index_storage(tensor.untyped_storage()),
            offset=int(tensor.storage_offset()),
            requires_grad=tensor.requires_grad,
            leaf=tensor.is_leaf,
            view_of=self._index_base(tensor, indices, known),
        )

    def _index_base(self, tensor: Tensor, indices: dict[int, int], known: int) -> int | None:
        """Return the index of the tensor's base: AOTAutograd treats tensors that share memory by their bases."""
        if tensor.is_inference() or not is_view(tensor):
            return None
        base = get_base(tensor)
        assert base is not None, "a view has a base"
        if base.dtype != tensor.dtype:
            raise SerializationError("it is a view of a tensor of another type of number")
        if id(base) in indices:
            return indices[id(base)]
        indices[id(base)] = known + len(self._bases)
        self._bases.append(base)
        return indices[id(base)]

    def _index_storage(self, memory: torch.UntypedStorage) -> int:
        index = self._known.setdefault(get_storage_id(memory), len(self.storages))
        if index == len(self.storages):
            offset = -(-self.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self.storages.append(StorageDocument(offset=offset, nbytes=memory.nbytes(), device=str(memory.device)))
            self._memories.append(memory)
        return index

    def _check_disjoint(self) -> None:
        """Raise `SerializationError` for two storages on the same memory, as NumPy and DLPack make them."""
        ranges = sorted((str(m.device), m.data_ptr(), m.data_ptr() + m.nbytes()) for m in self._memories if m.nbytes())
        for (device, _, end), (other, start, _) in itertools.pairwise(ranges):
            if device == other and start < end:
                raise SerializationError("inputs share memory in a way unknown to torch")


class _AttachHistory(torch.autograd.Function):
    """Give a tensor an autograd history, like that of another graph's result. Its gradient is discarded."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:  # noqa: ARG004 - autograd's signature
        return None, None


def read_tensors(path: Path, storages: Sequence[StorageDocument], documents: Sequence[TensorDocument]) -> list[Tensor]:
    """Return the tensors, on memory mapped from the file at `path`, or on copies of it on another device. Raises
    `OSError`, and `SerializationError` for documents that do not fit each other or the file."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # ACCESS_COPY is MAP_PRIVATE. One mapping for all, since each keeps a file descriptor; it lives as long as any
        # storage that is made of it.
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    memories = [_map_storage(mapping, storage, size) for storage in storages]
    made: dict[int, Tensor] = {}
    # Bases first; a view of a view is a view of the same base, so one look back is enough.
    for index in sorted(range(len(documents)), key=lambda index: documents[index].view_of is not None):
        made[index] = _restore_tensor(documents[index], memories, made)
    return [made[index] for index in range(len(documents))]


def _map_storage(mapping: mmap.mmap | bytes, storage: StorageDocument, size: int) -> torch.UntypedStorage:
    if storage.offset + storage.nbytes > size:
        raise SerializationError("the file of storages is shorter than its index says")
    if storage.nbytes == 0:
        return torch.UntypedStorage(0, device=storage.device)
    memory = torch.frombuffer(mapping, dtype=torch.uint8, count=storage.nbytes, offset=storage.offset)
    return memory.to(storage.device).untyped_storage()


def _restore_tensor(
    document: TensorDocument, memories: Sequence[torch.UntypedStorage], made: dict[int, Tensor]
) -> Tensor:
    dtype = getattr(torch, document.dtype, None)
    if not isinstance(dtype, torch.dtype) or document.storage >= len(memories):
        raise SerializationError("the index describes an impossible tensor")
    memory = memories[document.storage]
    reach = sum((length - 1) * stride for length, stride in zip(document.shape, document.strides, strict=True))
    if 0 not in document.shape and (document.offset + reach + 1) * dtype.itemsize > memory.nbytes():
        raise SerializationError("the index describes a tensor that is larger than its storage")
    if document.view_of is not None:
        with torch.set_grad_enabled(not document.leaf):
            tensor = made[document.view_of].as_strided(document.shape, document.strides, document.offset)
    else:
        tensor = torch.empty(0, dtype=dtype, device=memory.device)
        tensor.set_(memory, document.offset, document.shape, document.strides)
    if document.requires_grad and not document.leaf and document.view_of is None:
        with torch.enable_grad():
            # Torch 2.13 does not annotate it.
            apply: Any = _AttachHistory.apply
            tensor = apply(torch.zeros((), requires_grad=True), tensor)
    if document.kind == "parameter":
        return nn.Parameter(tensor, requires_grad=document.requires_grad)
    return tensor.requires_grad_() if document.requires_grad and document.leaf else tensor


def classify_input(tensor: Any) -> Kind:
    """Return the kind of an input of a Dynamo graph: static ones are buffers, or are marked to stay in place."""
    if isinstance(tensor, nn.Parameter):
        return "parameter"
    return "argument" if getattr(tensor, _STATIC, None) is None else "static"


def _check_serializable(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise SerializationError(f"it is a {type(tensor).__name__}, not a tensor")
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        raise SerializationError("it has no values")
    if type(tensor) not in _PLAIN or is_functorch_tensor(tensor):
        raise SerializationError(f"it is a {type(tensor).__name__}, a separate kind of tensor")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise SerializationError("it is sparse or quantized")
    if tensor.is_conj() or tensor.is_neg():
        raise SerializationError("it is a conjugated or negated view")
    if tensor.device.type not in ("cpu", "cuda"):
        raise SerializationError(f"it is on the device {tensor.device}")
    if has_hooks(tensor):
        raise SerializationError("it has hooks")
    base = None if tensor.is_inference() else get_base(tensor)
    base_requires = base is not None and base.requires_grad
    if is_view(tensor) and not tensor.is_leaf and not base_requires:
        raise SerializationError("it is a view with a gradient of a tensor without one")

"""Write a captured graph, its inputs and the state of torch to a folder, and read them in another process.

The graphs that the other process compiles have the same signatures (`frx_graph.capture.graph_signature`) as those of
the capture, so that recorded rewrites fit both. Signatures depend on the calls and the surroundings, and on the inputs:
their order, kinds, strides and aliases. They do not depend on the names of Dynamo's nodes or on source lines.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, fx, nn

from frx_graph.errors import SerializationError, summarize_error
from frx_graph.freezing.constant_folding import run_undisturbed
from frx_graph.serialization.nodes import deserialize_graph, serialize_nodes
from frx_graph.serialization.schema import FORMAT, GraphDocument, StorageDocument, TensorDocument, VersionDocument
from frx_graph.serialization.tensors import TensorWriter, read_tensors
from frx_graph.serialization.torch_state import Surroundings, capture_modes, capture_surroundings, restore_surroundings
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.torch_internals import LazyGraphModule

_INDEX = "graph.json"
_STORAGES = "storages.bin"


@dataclass(frozen=True)
class LoadedGraph:
    """A graph that was read: `model(*args)`, inside `surroundings.process()` and `.step()`, repeats the captured call.
    `model` owns the parameters and buffers."""

    model: nn.Module
    args: tuple[Tensor, ...]
    surroundings: Surroundings


class CapturedModel(nn.Module):
    """Calls `graph` with its inputs in order: parameters and buffers by name, and for None the next argument."""

    def __init__(self, graph: fx.GraphModule, names: Sequence[str | None]) -> None:
        super().__init__()
        self.graph = graph
        self.names = tuple(names)

    def forward(self, *given: Tensor) -> Any:
        """Return the outputs of the graph, a tuple."""
        rest = iter(given)
        values = []
        for name in self.names:
            value = next(rest) if name is None else getattr(self, name)
            # Dynamo makes a tensor an input when it is first used, and AOTAutograd numbers inputs in that order.
            value.dim()
            values.append(value)
        return self.graph(*values)


def write_graph(folder: Path, dynamo: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Write the arguments of a `torch.compile` backend into `folder`, before inner compilers change them. It takes as
    much disk as the inputs take memory. A second call, for the same graph, replaces the files. Raises
    `SerializationError`, and leaves no index, if something cannot be written."""
    surroundings = capture_surroundings()
    nodes = serialize_nodes(dynamo.graph)
    with _open_folder(folder):
        (folder / _INDEX).unlink(missing_ok=True)
        writer = _write_inputs(folder, dynamo, inputs)
        document = GraphDocument(
            format=FORMAT,
            torch=torch.__version__,
            storages_bytes=writer.nbytes,
            nodes=nodes,
            storages=writer.storages,
            tensors=writer.tensors,
            surroundings=surroundings,
        )
        write_atomically(folder / _INDEX, document.model_dump_json())


@dataclass(frozen=True)
class HeldGraph:
    """A graph whose nodes stay in this process, and whose inputs are copied to a file."""

    dynamo: fx.GraphModule
    folder: Path
    storages: Sequence[StorageDocument]
    tensors: Sequence[TensorDocument]
    surroundings: Surroundings

    def copy(self) -> LoadedGraph:
        """Return a copy of the graph and its tensors, like `read_graph`. Raises `SerializationError` if it fails."""
        try:
            graph = copy.deepcopy(self.dynamo)
            for part in graph.modules():
                if isinstance(part, fx.GraphModule):
                    # Else the first call generates its code, which Dynamo would try to trace.
                    LazyGraphModule.force_recompile(part)
        except Exception as error:
            raise SerializationError(f"the graph cannot be copied: {summarize_error(error)}") from error
        with run_undisturbed():
            tensors = read_tensors(self.folder / _STORAGES, self.storages, self.tensors)
        return _assemble_graph(graph, tensors, self.tensors, self.surroundings)


def hold_graph(folder: Path, dynamo: fx.GraphModule, inputs: Sequence[Any]) -> HeldGraph:
    """Copy the arguments of a backend for another thread. Raises `SerializationError` if that cannot be done."""
    with _open_folder(folder):
        writer = _write_inputs(folder, dynamo, inputs)
    return HeldGraph(dynamo, folder, writer.storages, writer.tensors, capture_modes())


def _write_inputs(folder: Path, dynamo: fx.GraphModule, inputs: Sequence[Any]) -> TensorWriter:
    names = [node.name for node in dynamo.graph.find_nodes(op="placeholder")]
    if len(names) != len(inputs):
        raise SerializationError(f"the graph has {len(names)} inputs, and {len(inputs)} are given")
    with run_undisturbed():
        writer = TensorWriter()
        writer.add_inputs(names, inputs)
        with (folder / _STORAGES).open("wb") as file:
            writer.write(file)
    return writer


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise SerializationError(f"the graph cannot be written to {folder}: {error.strerror or error}") from error


def read_graph(folder: Path) -> LoadedGraph:
    """Read the graph in `folder`, with tensors on the CPU mapped: processes share the memory until they write. Raises
    `SerializationError` if there is none, or another version of torch or of this format wrote it."""
    document = _read_document(folder / _INDEX)
    try:
        tensors = read_tensors(folder / _STORAGES, document.storages, document.tensors)
    except OSError as error:
        raise SerializationError(f"the graph in {folder} cannot be read: {error.strerror or error}") from error
    surroundings = restore_surroundings(document.surroundings)
    return _assemble_graph(deserialize_graph(document.nodes), tensors, document.tensors, surroundings)


def _assemble_graph(
    graph: fx.GraphModule,
    tensors: Sequence[Tensor],
    documents: Sequence[TensorDocument],
    surroundings: Surroundings,
) -> LoadedGraph:
    inputs = [(tensor, form) for tensor, form in zip(tensors, documents, strict=True) if form.kind != "base"]
    kinds = [form.kind for _, form in inputs]
    names = [None if kind == "argument" else f"{kind}_{index}" for index, kind in enumerate(kinds)]
    model = _copy_class(CapturedModel)(graph, names)
    for name, (tensor, form) in zip(names, inputs, strict=True):
        if name is not None and form.kind == "parameter":
            model.register_parameter(name, tensor)  # type: ignore[arg-type]  # it is one
        elif name is not None:
            model.register_buffer(name, tensor)
    args = tuple(tensor for name, (tensor, _) in zip(names, inputs, strict=True) if name is None)
    return LoadedGraph(model, args, surroundings)


def _copy_class(kind: type[CapturedModel]) -> type[CapturedModel]:
    """Return a copy of the class with its own code object: Dynamo would take several models for versions of one."""
    plain: Any = kind.forward
    forward = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    return type(kind.__name__, (kind,), {"forward": forward})


def _read_document(path: Path) -> GraphDocument:
    try:
        text = path.read_text(encoding="utf-8")
        version = VersionDocument.model_validate_json(text)
        if version.format != FORMAT or version.torch != torch.__version__:
            raise SerializationError(
                f"{path} was written as {version.format} with torch {version.torch}; this is {FORMAT} and torch "
                f"{torch.__version__}"
            )
        return GraphDocument.model_validate_json(text)
    except OSError as error:
        raise SerializationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValidationError, ValueError) as error:
        raise SerializationError(f"{path} is not a graph file: {error}") from error

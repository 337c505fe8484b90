"""Define the index of a graph file, `graph.json`, which is checked when it is read."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Final = "frx_graph_file_v1"
Kind: TypeAlias = Literal["parameter", "static", "argument", "base"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class VersionDocument(BaseModel):
    """The fields that are read first, from a file of any version."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: str
    torch: str


class NodeDocument(_Document):
    """One node of the Dynamo graph, in the graph's order."""

    op: Literal["placeholder", "get_attr", "call_function", "call_method", "output"]
    name: str
    target: str
    """The import path of a function."""
    args: list[Any]
    """As `frx_graph.serialization.arguments` writes them."""
    kwargs: dict[str, Any]
    body: list[NodeDocument] | None = None
    """The graph that a `get_attr` reads, which the backward computes again."""


class StorageDocument(_Document):
    """A memory that holds tensors."""

    offset: int = Field(ge=0)
    """Bytes from the start of the file of storages; a multiple of the page's size."""
    nbytes: int = Field(ge=0)
    device: str


class TensorDocument(_Document):
    """A tensor: an input of the graph, or what an input is a view of."""

    kind: Kind
    """`static` tensors keep their address, such as buffers; `base` is not an input itself."""
    dtype: str
    """The name of torch's constant, `float32`."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements, as the offset."""
    storage: int = Field(ge=0)
    """Index into the storages."""
    offset: int = Field(ge=0)
    requires_grad: bool
    leaf: bool
    view_of: int | None
    """Index into the tensors."""


class SurroundingsDocument(_Document):
    """The state of torch in which the graph was captured."""

    grad_enabled: bool
    autocast: dict[str, str]
    """The dtype that autocast converts to, by type of device with autocast on."""
    autocast_cache: bool
    settings: dict[str, Any]
    """Process-wide settings of torch, by their names in `torch_settings.SETTINGS`."""
    configuration: dict[str, dict[str, Any]]
    """Changes in `torch._dynamo.config` and its like, by module and name."""


class GraphDocument(_Document):
    """A captured graph. Inputs come first among the tensors."""

    format: Literal["frx_graph_file_v1"]
    torch: str
    """Its version: functions and their defaults are looked up by name, and mean what they mean there."""
    storages_bytes: int = Field(ge=0)
    """Size of the file of storages."""
    nodes: list[NodeDocument]
    storages: list[StorageDocument]
    tensors: list[TensorDocument]
    surroundings: SurroundingsDocument

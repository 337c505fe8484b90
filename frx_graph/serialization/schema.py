"""The index of a graph file: what stands in `graph.json`, checked where it is read."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Final = "frx_graph_file_v1"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class VersionDocument(BaseModel):
    """What is read first, of a file of whatever version."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: str
    torch: str


class NodeDocument(_Document):
    """One node of the Dynamo graph, in the graph's order."""

    op: Literal["placeholder", "get_attr", "call_function", "call_method", "output"]
    name: str
    target: str
    """Of a function its import path."""
    args: list[Any]
    """As `travel.arguments` writes them."""
    kwargs: dict[str, Any]
    body: list[NodeDocument] | None = None
    """Of a `get_attr` the graph that it gets: what is computed again in the backward."""


class StorageDocument(_Document):
    """A memory that tensors lie in."""

    offset: int = Field(ge=0)
    """Bytes from the start of the file of storages; a multiple of the page's size."""
    nbytes: int = Field(ge=0)
    device: str


class TensorDocument(_Document):
    """A tensor: an input of the graph, or what an input is a view of."""

    kind: Literal["parameter", "static", "argument", "base"]
    """`static` is what has an address that stays, such as a buffer; `base` is no input itself."""
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
    """By type of device, where it is on, to which type of number it converts."""
    autocast_cache: bool
    settings: dict[str, Any]
    """Process-wide settings of torch, by the name that `travel.surroundings` has for them."""
    configuration: dict[str, dict[str, Any]]
    """What was changed in `torch._dynamo.config` and its like, by module and name."""


class GraphDocument(_Document):
    """A captured graph that travels. The tensors that are no inputs come after those that are."""

    format: Literal["frx_graph_file_v1"]
    torch: str
    """Its version: functions and their defaults are looked up by name, and mean what they mean there."""
    storages_bytes: int = Field(ge=0)
    """Size of the file of storages."""
    nodes: list[NodeDocument]
    storages: list[StorageDocument]
    tensors: list[TensorDocument]
    surroundings: SurroundingsDocument

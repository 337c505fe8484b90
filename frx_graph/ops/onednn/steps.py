"""Describe a part of a graph that oneDNN computes, as the argument of an operator: a text.

Values have numbers: first the part's inputs, then one for the result of each step. Constants are counted by themselves.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Shape and strides of a value that the graph passes in, or is given back."""

    shape: Sizes
    strides: Sizes

    def allocate(self) -> Tensor:
        """Return such a tensor, without values."""
        return torch.empty_strided(self.shape, self.strides, dtype=torch.float32, device="cpu")


@dataclass(frozen=True, slots=True)
class Operand:
    """The second operand of a sum or product: a value, or a constant."""

    number: int
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Following:
    """An operation on the result of a step, while it is in registers: an activation, or one with another operand."""

    algorithm: Literal[
        "relu",
        "tanh",
        "linear",
        "sigmoid",
        "gelu",
        "swish",
        "clip",
        "hardswish",
        "add",
        "sub",
        "mul",
    ]
    alpha: float = 0.0
    beta: float = 0.0
    operand: Operand | None = None


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of an image or a volume with a constant weight."""

    image: int
    weight: int
    bias: int | None
    stride: Sizes
    before: Sizes
    """Zeros in front of each dimension."""
    behind: Sizes
    dilation: Sizes
    groups: int
    shape: Sizes
    following: tuple[Following, ...] = ()
    kind: Literal["convolution"] = "convolution"


@dataclass(frozen=True, slots=True)
class Product:
    """A product of rows with a constant matrix."""

    rows: int
    weight: int
    bias: int | None
    shape: Sizes
    following: tuple[Following, ...] = ()
    kind: Literal["product"] = "product"


@dataclass(frozen=True, slots=True)
class Pooling:
    """The maximum or average of windows."""

    image: int
    algorithm: Literal["max", "average", "average_inside"]
    window: Sizes
    stride: Sizes
    before: Sizes
    behind: Sizes
    shape: Sizes
    kind: Literal["pooling"] = "pooling"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Operations on each element."""

    value: int
    shape: Sizes
    following: tuple[Following, ...]
    kind: Literal["elementwise"] = "elementwise"


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Values side by side."""

    values: tuple[int, ...]
    dimension: int
    shape: Sizes
    kind: Literal["concatenation"] = "concatenation"


@dataclass(frozen=True, slots=True)
class Reshape:
    """The elements in plain order, in another shape."""

    value: int
    shape: Sizes
    kind: Literal["reshape"] = "reshape"


Step = Annotated[Convolution | Product | Pooling | Elementwise | Concatenation | Reshape, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a graph. `outputs` are numbers of values, `results` what the graph is given."""

    inputs: tuple[TensorLayout, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    results: tuple[TensorLayout, ...]


_ADAPTER: TypeAdapter[Region] = TypeAdapter(Region)


def write_region(region: Region) -> str:
    """Return the region as text."""
    return json.dumps(asdict(region))


@lru_cache(maxsize=256)
def read_region(text: str) -> Region:
    """Return the region that a text describes. Raises `pydantic.ValidationError` for another text."""
    return _ADAPTER.validate_json(text)

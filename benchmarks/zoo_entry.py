"""What a network of the zoo is, and what its builders share: seeds, sizes, images."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

Built: TypeAlias = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model, its positional and its keyword arguments."""

BATCH = 2
"""Two, because a dimension of size 1 hides layout."""
IMAGE = 224
"""Side of an ImageNet crop, in pixels."""
CLASSES = 1000
SEED = 0


class Group(enum.StrEnum):
    """What kind of network an entry is; benchmarks sum up by group."""

    CONVOLUTIONAL = "standard convolutional"
    TRANSFORMER = "transformer"
    WRITTEN = "written by people"


class Builder(Protocol):
    """Makes a fresh network with the same weights and inputs every time; `train` puts it in training mode."""

    @property
    def __name__(self) -> str: ...

    def __call__(self, train: bool = False, batch: int = BATCH) -> Built: ...


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network. `train_batch` is the batch of a training step where speed is measured: 1 for a network that is meant
    for small batches. With `alternates`, a step calls the model twice: with its arguments as they were built, and with
    the same in channels-last. With `only_batch_varies`, sizes of images are fixed where the others are compiled for all
    sizes: such a case took 21 minutes, where it was sampled in Dynamo."""

    name: str
    build: Builder
    group: Group
    train_batch: int = 4
    alternates: bool = False
    only_batch_varies: bool = False


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """The same weights and inputs on every build, with the caller's random state left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


def images(batch: int, side: int = IMAGE, channels: int = 3) -> Tensor:
    """Random images, (batch, channels, side, side)."""
    return torch.randn(batch, channels, side, side)

"""The families of candidates in the order of their stages: how data come first, since what a model gains is hidden by
what it waits for."""

from __future__ import annotations

from frx_graph.runs.tune.families import (
    allocator,
    batch_size,
    compilation,
    cuda_graphs,
    dataloader,
    layout,
    precision,
)
from frx_graph.runs.tune.families.family import Family

FAMILIES: tuple[Family, ...] = (
    dataloader.FAMILY,
    allocator.FAMILY,
    batch_size.FAMILY,
    precision.FAMILY,
    layout.FAMILY,
    compilation.FAMILY,
    cuda_graphs.FAMILY,
)

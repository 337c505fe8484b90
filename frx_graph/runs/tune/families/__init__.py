"""List the families of candidates in the order of their stages. Data loading comes first, since waiting for data hides
gains of the model."""

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

"""Detect blocks whose threads are not a multiple of a warp: the last warp of each is partly empty.

Certain if the launch gives the size as a number.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.evidence.cuda.values import WARP


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per launch."""
    for launch in source.launches:
        threads = launch.block.count
        if threads is not None and threads > WARP and threads % WARP:
            said = f"{threads} threads a block: the last of {-(-threads // WARP)} warps has {threads % WARP}"
            yield Occurrence(launch.kernel, launch.line, said)

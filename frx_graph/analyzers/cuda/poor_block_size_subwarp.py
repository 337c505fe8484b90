"""Detect blocks with fewer threads than a warp: the rest of the warp idles in every block.

Certain if the launch gives the size as a number. A launch of one block, or with one thread, is small on purpose.
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
        if threads is not None and 1 < threads < WARP and launch.grid.count != 1:
            said = f"{threads} of the {WARP} threads of each block's warp have work"
            yield Occurrence(launch.kernel, launch.line, said)

"""Blocks of a number of threads that is no multiple of a warp: the last warp of each is partly empty.

Certain where the launch says it in numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import CudaDetector, Occurrence
from frx_graph.evidence.cuda.source import CudaSource

WARP = 32


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """One sight for a launch."""
    for launch in source.launches:
        threads = launch.block.count
        if threads is not None and threads > WARP and threads % WARP:
            said = f"{threads} threads a block: the last of {-(-threads // WARP)} warps has {threads % WARP}"
            yield Occurrence(launch.kernel, launch.line, said)


DETECTOR = CudaDetector("poor_block_size_unaligned", detect)

"""So much shared memory, or so few threads a block, that a multiprocessor stays more than half empty on any device.

Certain where the launch says in numbers how many threads a block has, and how much shared memory all its arrays take. A
grid of one block does not fill a device anyway, and is not meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.passes.cuda.finding import CudaDetector, Sight
from frx_graph.passes.cuda.launch_advice import launch_advice
from frx_graph.passes.cuda.occupancy_bounds import best_occupancy

LOW = 0.5
"""Below it, latency of memory is rarely hidden: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#occupancy"""


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for a launch."""
    for advice in launch_advice(source):
        threads, shared = advice.threads, advice.shared
        if not advice.occupancy or threads is None or shared is None or advice.launch.grid.count == 1:
            continue
        best = best_occupancy(threads, shared)
        if best < LOW:
            said = f"{threads} threads a block with {shared:,} bytes of shared memory: at most {best:.0%} on any device"
            yield Sight(advice.launch.kernel, advice.launch.line, said)


DETECTOR = CudaDetector("low_theoretical_occupancy", detect)

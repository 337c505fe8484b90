"""Detect blocks with so much shared memory, or so few threads, that over half of a multiprocessor stays empty.

This holds on any device, or on the named one. Certain if the launch gives the threads of a block and the shared memory
of all its arrays as numbers. A grid of one block cannot fill a device, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.analyzers.cuda.launch_advice import advise_on_launches
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.rules.gpu_profile import GpuProfile

LOW = 0.5
"""Occupancy below which memory latency is rarely hidden:
https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#occupancy"""


def detect(source: CudaSource, gpu: GpuProfile | None) -> Iterator[Occurrence]:
    """Yield one occurrence per launch."""
    where = "any device" if gpu is None else gpu.name
    for advice in advise_on_launches(source, gpu):
        if not advice.residency or advice.launch.grid.count == 1:
            continue
        best = max(one.occupancy for one in advice.residency)
        if best < LOW:
            most = f"at most {best:.0%} of the warps on {where}" if best else f"such a block fits on no part of {where}"
            said = f"{advice.threads} threads a block with {advice.shared:,} bytes of shared memory: {most}"
            yield Occurrence(advice.launch.kernel, advice.launch.line, said)

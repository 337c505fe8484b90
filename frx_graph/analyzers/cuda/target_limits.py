"""The multiprocessors for which a finding has to hold: of one GPU that was named, or of all that are listed."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from frx_graph.rules.gpu_profile import GpuProfile, SmLimits, all_architectures


def target_limits(gpu: GpuProfile | None) -> Mapping[str, SmLimits]:
    """Limits by the GPU's name, or by compute capability in its order. Empty for a GPU that no CUDA runs on."""
    if gpu is None:
        return _by_capability()
    limits = gpu.architecture.limits
    return {} if limits is None else {gpu.name: limits}


@functools.cache
def _by_capability() -> Mapping[str, SmLimits]:
    cards = all_architectures().values()
    known = {card.architecture: card.limits for card in cards if card.limits is not None}
    return {name: known[name] for name in sorted(known, key=lambda one: int(one.removeprefix("sm_")))}

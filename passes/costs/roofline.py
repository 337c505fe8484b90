"""Where work lies under a device's roofline (Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from frx_graph.measure.machine.device_profile import DeviceProfile


@dataclass(frozen=True, slots=True)
class RooflinePosition:
    """Some work on a device. `intensity` and `ridge` are FLOPs per byte, rates FLOP/s, times seconds."""

    flops: int
    bytes: int
    ridge: float
    peak: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte moved."""
        return self.flops / self.bytes

    @property
    def memory_bound(self) -> bool:
        """True left of the ridge point, where bandwidth limits."""
        return self.intensity < self.ridge

    @property
    def attainable(self) -> float:
        """FLOP/s that the roofline allows."""
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def predicted_seconds(self) -> float:
        """The least time on this device."""
        return max(self.bytes / self.bandwidth, self.flops / self.peak)


def roofline_position(
    flops: int, moved_bytes: int, device: DeviceProfile, dtype: torch.dtype
) -> RooflinePosition | None:
    """None where nothing is moved or the device's peak for `dtype` is unknown."""
    ridge = device.ridge_point(dtype)
    if ridge is None or moved_bytes <= 0:
        return None
    return RooflinePosition(flops, moved_bytes, ridge, device.peak_flops[dtype], device.bandwidth_bytes_per_s)

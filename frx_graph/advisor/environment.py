"""What the advice was made on."""

from __future__ import annotations

import platform

import torch

from frx_graph.advice import Environment, PeakFlops
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.version import __version__


def environment_of(
    device: torch.device, profile: DeviceProfile | None, *, inner: str, contract: str | None
) -> Environment:
    """The versions and the device at hand; bandwidth and peaks only where the device was calibrated."""
    peaks = profile.peak_flops if profile is not None else {}
    return Environment(
        frx_version=__version__,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        device=str(device),
        device_name=profile.name if profile is not None else device.type,
        inner=inner,
        threads=torch.get_num_threads(),
        bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s if profile is not None else None,
        peak_flops=tuple(PeakFlops(str(dtype).removeprefix("torch."), flops) for dtype, flops in peaks.items()),
        contract=contract,
    )

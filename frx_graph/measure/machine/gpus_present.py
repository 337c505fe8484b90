"""Which NVIDIA GPUs a program that is started here will find, as their driver tells: CUDA is not initialised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType

from frx_graph.measure.machine.device_state import loaded_nvml


def gpu_names(nvml: ModuleType | None = None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names in the order of the bus; none without a driver, its library, or a device, and where `CUDA_VISIBLE_DEVICES`
    hides them all."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return ()
    nvml = nvml or loaded_nvml()
    if nvml is None:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
    except nvml.NVMLError:
        return ()
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)

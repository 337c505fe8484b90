"""The device that torch calls `cuda:N`, as NVML knows it."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from frx_graph.measure.machine.device_state import NvidiaDevice, load_nvml


def find_nvidia_device(device: torch.device, nvml: ModuleType | None = None) -> NvidiaDevice | None:
    """Return NVML's handle of a CUDA device; None for any other, and if NVML does not know it. Initialises CUDA.

    The device is found by UUID, else by PCI address: torch counts the devices that CUDA_VISIBLE_DEVICES leaves, by
    default the fastest first, while NVML counts all in the order of the bus (`torch.cuda._get_nvml_device_index` takes
    both for the same order).
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    nvml = nvml or load_nvml()
    if nvml is None:
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    queries = []
    if (uuid := getattr(properties, "uuid", None)) is not None:
        bare = str(uuid).removeprefix("GPU-").removeprefix("MIG-")
        queries += [(nvml.nvmlDeviceGetHandleByUUID, f"{kind}-{bare}") for kind in ("GPU", "MIG")]
    if (bus := getattr(properties, "pci_bus_id", None)) is not None:
        address = f"{properties.pci_domain_id:08x}:{bus:02x}:{properties.pci_device_id:02x}.0"
        queries.append((nvml.nvmlDeviceGetHandleByPciBusId, address))
    for ask, name in queries:
        with contextlib.suppress(nvml.NVMLError):
            return NvidiaDevice(nvml, ask(name))
    return None

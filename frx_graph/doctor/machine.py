"""Check this machine without torch: Python, GPUs, and NVIDIA's tools."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterator, Sequence

from frx_graph.errors import summarize_error
from frx_graph.evidence.ncu.profiler import find_ncu
from frx_graph.evidence.ptx.ptxas import find_ptxas
from frx_graph.measure.machine.device_state import load_nvml
from frx_graph.measure.nvcc import find_nvcc
from frx_graph.rules.gpu_profile import find_gpu
from frx_graph.support.check import Check, Status

_PARTS = {
    "SDK": ("frx_graph.runs.sdk.session",),
    "analysis": ("frx_graph.analyze.layers", "frx_graph.analyzers.run"),
}
"""Modules that record a run, and modules that read one."""


def check_python() -> Iterator[Check]:
    """Report the version and path of Python."""
    yield Check("python", f"{platform.python_version()} ({sys.executable})")


def check_gpu_model(names: Sequence[str]) -> Iterator[Check]:
    """Check for the profiles of these GPUs, by which kernels are judged. Yields nothing without a GPU."""
    for name in dict.fromkeys(names):
        profile = find_gpu(name)
        if profile is None:
            hint = "kernels are judged by its architecture alone; --gpu-model names another GPU"
            yield Check("GPU model", f"{name} is not listed", Status.WARNING, hint)
        else:
            card = profile.architecture
            yield Check("GPU model", f"{profile.name}, {card.architecture} ({card.name})")


def check_driver() -> Iterator[Check]:
    """Check that GPUs can be sampled while a program runs."""
    nvml = load_nvml()
    if nvml is None:
        yield Check("NVML", "no NVIDIA driver here (only needed to sample GPUs)", absent=True)
        return
    try:
        version = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError as error:
        yield Check("NVML", summarize_error(error), Status.WARNING, "GPUs cannot be sampled: look at nvidia-smi")
    else:
        yield Check("NVML", f"driver {version.decode() if isinstance(version, bytes) else version}")


def check_tools() -> Iterator[Check]:
    """Check for the tools that `frx profile`, `compare`, `bench` and `analyze` run. Nothing else needs them."""
    for name, path, needed_for in (
        ("ncu", find_ncu(), "frx profile, --with-ncu"),
        ("nvcc", find_nvcc(), "frx bench, --with-ptx"),
        ("ptxas", find_ptxas(), "registers and spills of PTX"),
    ):
        yield Check(name, path or f"not found (only needed for {needed_for})", absent=path is None)


def check_parts() -> Iterator[Check]:
    """Check that the parts of frx that record and read runs can be imported."""
    for name, modules in _PARTS.items():
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError as error:
            yield Check(name, summarize_error(error), Status.ERROR, "pip install --force-reinstall frx-graph")
        else:
            yield Check(name, "importable")

"""Check this machine: Python, torch, GPUs, and NVIDIA's tools."""

from __future__ import annotations

import importlib
import platform
import sys
from collections import Counter
from collections.abc import Iterator

import torch

from frx_graph.errors import summarize_error
from frx_graph.evidence.ncu.profiler import find_ncu
from frx_graph.evidence.ptx.ptxas import find_ptxas
from frx_graph.measure.machine.device_state import load_nvml
from frx_graph.measure.nvcc import find_nvcc
from frx_graph.measure.page_faults import count_page_faults
from frx_graph.rules.gpu_profile import find_gpu
from frx_graph.support.allocator import Allocation, find_process_allocator, read_allocation
from frx_graph.support.check import Check, Status

OLDEST_TORCH = (2, 11)
_BLOCK_BYTES = 40 * 2**20
"""Above the largest `mmap` threshold that glibc chooses by itself, 32 MiB."""
_REUSES = 5
_PARTS = {
    "SDK": ("frx_graph.runs.sdk.session",),
    "analysis": ("frx_graph.analyze.layers", "frx_graph.analyzers.run"),
}
"""Modules that record a run, and modules that read one."""


def check_python() -> Iterator[Check]:
    """Report the version and path of Python."""
    yield Check("python", f"{platform.python_version()} ({sys.executable})")


def check_torch() -> Iterator[Check]:
    """Check that torch is not older than the oldest supported version."""
    version = str(torch.__version__)
    major, minor = (int(part) for part in version.split(".")[:2])
    old = (major, minor) < OLDEST_TORCH
    oldest = ".".join(map(str, OLDEST_TORCH))
    yield Check("torch", version, Status.ERROR if old else Status.OK, f"install torch {oldest} or newer" if old else "")


def check_allocation() -> Iterator[Check]:
    """Report the allocator of this process, and how much of a large block is faulted in again when it is reused."""
    match read_allocation():
        case Allocation.DEFAULT:
            description = "glibc, gives freed memory back to the kernel"
        case Allocation.POOLED:
            description = "glibc, keeps freed memory"
        case Allocation.CHOSEN:
            description = f"chosen by the environment: {find_process_allocator()}"
        case Allocation.UNKNOWN:
            description = "of another C library than glibc"
    faults = count_page_faults(_reuse_block, calls=_REUSES)
    if faults is None:
        counted = "page faults are not counted here"
    else:
        counted = f"{faults.per_call:,} page faults to reuse a block of {_BLOCK_BYTES >> 20} MiB"
    yield Check("allocator", f"{description}; {counted}")


def _reuse_block() -> None:
    torch.empty(_BLOCK_BYTES, dtype=torch.uint8).fill_(1)


def check_cuda() -> Iterator[Check]:
    """Check which GPUs torch can use. No GPU is not an error: everything also works on the CPU."""
    names = list_gpu_names()
    if names:
        yield Check("CUDA available", ", ".join(f"{name} x{count}" for name, count in Counter(names).items()))
    elif torch.version.cuda is None and torch.version.hip is None:
        yield Check("CUDA available", "no: this torch is a CPU build, so frx analyses the CPU only")
    else:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        yield Check("CUDA available", f"no: torch is built for {built}, but sees no device or driver")


def check_gpu_model() -> Iterator[Check]:
    """Check for the profile of the GPU by which kernels are judged. Yields nothing without a GPU."""
    for name in dict.fromkeys(list_gpu_names()):
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
        status, hint = Status.OK, ""
        if torch.cuda.is_available() and torch.version.cuda is not None:
            status, hint = Status.WARNING, "GPUs cannot be sampled: the driver's libnvidia-ml.so.1 is not found"
        yield Check("NVML", "no NVIDIA driver here (only needed to sample GPUs)", status, hint)
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
        yield Check(name, path or f"not found (only needed for {needed_for})")


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


def list_gpu_names() -> list[str]:
    """Return the names of the GPUs that torch can use."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]

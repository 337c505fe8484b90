"""Gather the facts of a workload and its machine from which candidates are made, and refused."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frx_graph.measure.machine.device_state import list_gpu_names, load_nvml
from frx_graph.trials.configuration_trial import RunSeen

_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_ALLOCATORS = ("jemalloc", "tcmalloc", "tcmalloc_minimal")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """The machine, and the run that candidates are compared with. None: unknown."""

    processors: int
    """The number of processors that the program may use."""
    gpus: tuple[str, ...]
    bf16: bool
    """True if the device has instructions for bfloat16."""
    compiler: bool
    """True if torch.compile finds a C++ compiler."""
    environment: Mapping[str, str]
    """The user's environment variables."""
    seen: RunSeen
    quality_checks: bool
    glibc: bool = False
    """True if the C library is glibc, which has variables against giving memory back."""
    allocators: tuple[tuple[str, str], ...] = ()
    """Other allocators that are installed, each with the name of the library to preload."""


def gather_workload_facts(seen: RunSeen, environment: Mapping[str, str], *, quality_checks: bool) -> WorkloadFacts:
    """Return the facts of this machine."""
    gpus = list_gpu_names(environ=environment)
    return WorkloadFacts(
        processors=len(os.sched_getaffinity(0)),
        gpus=gpus,
        bf16=bool(gpus) and _is_ampere_or_later() if gpus else _has_cpu_bf16(),
        compiler=any(map(shutil.which, (environment.get("CXX", "g++"), "g++", "clang++"))),
        environment=environment,
        seen=seen,
        quality_checks=quality_checks,
        glibc=platform.libc_ver()[0] == "glibc",
        allocators=tuple(
            (name, library) for name in _ALLOCATORS if (library := ctypes.util.find_library(name)) is not None
        ),
    )


def _has_cpu_bf16(cpu_info: Path = _CPU_INFO) -> bool:
    try:
        return bool(_BF16_FLAGS & set(cpu_info.read_text().split()))
    except OSError:
        return False


def _is_ampere_or_later() -> bool:
    """Return True if the first GPU has bfloat16: compute capability 8.0."""
    nvml = load_nvml()
    if nvml is None:
        return False
    try:
        major, _ = nvml.nvmlDeviceGetCudaComputeCapability(nvml.nvmlDeviceGetHandleByIndex(0))
    except nvml.NVMLError:
        return False
    return bool(major >= 8)

"""Check this installation: versions, devices, compilers, caches, and the collection of evidence."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from frx_graph.doctor import machine
from frx_graph.measure.machine.device_state import list_gpu_names
from frx_graph.support.cache_directory import CACHE_VARIABLE, get_cache_directory
from frx_graph.support.check import Check, Status
from frx_graph.support.optional_torch import INSTALL_TORCH, is_torch_installed
from frx_graph.version import __version__


def check_installation() -> tuple[Check, ...]:
    """Run all checks, in the order in which they are printed. Takes a second or two if torch is installed."""
    looked = [Check("frx-graph", __version__), *machine.check_python(), *machine.check_parts()]
    if is_torch_installed():
        from frx_graph.doctor.torch_build import check_torch_build, list_torch_gpus

        looked += check_torch_build()
        gpus: Sequence[str] = list_torch_gpus()
    else:
        looked.append(report_no_torch())
        gpus = list_gpu_names()
    looked += (*machine.check_gpu_model(gpus), *machine.check_driver(), *machine.check_tools(), *_check_cache())
    return tuple(looked)


def check_first_steps() -> tuple[Check, ...]:
    """Run the checks that decide what a new user can do, which take no time."""
    looked = [*machine.check_python()]
    if is_torch_installed():
        from frx_graph.doctor.torch_build import check_torch_and_cuda, list_torch_gpus

        looked += check_torch_and_cuda()
        gpus: Sequence[str] = list_torch_gpus()
    else:
        looked.append(report_no_torch())
        gpus = list_gpu_names()
    return (*looked, *machine.check_gpu_model(gpus), *machine.check_tools())


def report_no_torch() -> Check:
    """Return what an installation without torch can do."""
    return Check("torch", f"not installed: files are read without it. {INSTALL_TORCH}", absent=True)


def _check_cache() -> Iterator[Check]:
    folder = get_cache_directory()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    description = f"{folder} ({len(files)} files, {size / 1024:.0f} KiB)"
    if _is_writable(folder):
        yield Check("cache", description)
    else:
        hint = f"every run must measure again; name a writable folder in {CACHE_VARIABLE}"
        yield Check("cache", f"{description}, cannot be written", Status.WARNING, hint)


def _is_writable(folder: Path) -> bool:
    """Return True if files, or `folder` itself, can be created. Writes nothing."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)

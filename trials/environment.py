"""Read the setup of this process for a trial, and the current state of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from frx_graph.measure.machine.device_calibration import get_device_name
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.measure.machine.nvml_device import find_nvidia_device
from frx_graph.measure.machine.processor_state import read_processor_state
from frx_graph.serialization.decisive_settings import collect_decisive_settings
from frx_graph.support.allocator import find_allocation, read_allocation
from frx_graph.support.torch_internals import inductor_config
from frx_graph.trials.decisive_variables import select_decisive_variables
from frx_graph.trials.environment_record import TrialEnvironment, TrialSetup
from frx_graph.version import __version__


def find_device(inputs: Sequence[object]) -> torch.device:
    """Return the GPU if any of the program's `inputs` is there, else the CPU."""
    return next((value.device for value in inputs if isinstance(value, Tensor) and value.is_cuda), torch.device("cpu"))


def read_trial_setup(device: torch.device, variables: Mapping[str, str] | None = None) -> TrialSetup:
    """Return the setup of this process for `device`; `variables` replace the environment's."""
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    cpu = torch.device("cpu")
    nvidia = find_nvidia_device(device)
    major_minor = torch.cuda.get_device_capability(device) if on_gpu else None
    return TrialSetup(
        frx=__version__,
        python=platform.python_version(),
        # That one knows kinds of devices, of which there may be two in a machine.
        operators=replace(
            get_measurement_environment(device.type), device_name=get_device_name(device if on_gpu else cpu)
        ),
        interop_threads=torch.get_num_interop_threads(),
        triton=_get_version("triton"),
        driver=nvidia.read_driver() if nvidia is not None else None,
        cuda=torch.version.cuda if on_gpu else None,
        cudnn=torch.backends.cudnn.version() if on_gpu else None,
        capability="{}.{}".format(*major_minor) if major_minor is not None else None,
        processor=get_device_name(cpu),
        processors=len(_get_affinity() or range(os.cpu_count() or 1)),
        variables=select_decisive_variables(os.environ if variables is None else variables),
        settings=collect_decisive_settings(),
        cpp_compiler=identify_cpp_compiler(),
        allocation=read_allocation() if variables is None else find_allocation(variables),
    )


def read_trial_environment(device: torch.device) -> TrialEnvironment:
    """Return the setup, and the state of this machine now."""
    nvidia = find_nvidia_device(device)
    return TrialEnvironment(
        setup=read_trial_setup(device),
        host=platform.node(),
        affinity=_get_affinity(),
        processor=read_processor_state(),
        device=nvidia.read_state() if nvidia is not None else None,
    )


def _get_affinity() -> tuple[int, ...] | None:
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None


def _get_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def identify_cpp_compiler() -> str | None:
    """Return what identifies the C++ compiler of Inductor without starting it: its resolved name, its size, and its
    time, which packages keep from their build. None if there is none."""
    compilers = inductor_config.cpp.cxx
    names = compilers if isinstance(compilers, (tuple, list)) else (compilers,)
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if found is None:
        return None
    file = Path(found).resolve()
    status = file.stat()
    return f"{file.name}, {status.st_size} bytes, {int(status.st_mtime)}"

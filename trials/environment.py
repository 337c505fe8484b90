"""On what a trial was made: the setup that decides whether its decision may be used again, and the machine's state.

A decision is about one setup, whose fingerprint keys it in the ledger. What changes from hour to hour, load and clocks,
host name, and which of its equal processors a process may use, is recorded beside it and in no fingerprint.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from frx_graph.measure.machine.device_calibration import device_name
from frx_graph.measure.machine.device_state import DeviceState, nvidia_device
from frx_graph.measure.machine.measurement_environment import MeasurementEnvironment, measurement_environment
from frx_graph.measure.machine.processor_state import ProcessorState, processor_state
from frx_graph.serialization.decisive_settings import decisive_settings
from frx_graph.trials.cpp_compiler import cpp_compiler
from frx_graph.trials.decisive_variables import decisive_variables
from frx_graph.version import __version__


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """What decides how fast two programs are compared with each other. None: not told, or there is none."""

    frx: str
    python: str
    operators: MeasurementEnvironment
    """Versions of torch and oneDNN, device, CPU capability, threads, and the settings that decide kernels."""
    interop_threads: int
    triton: str | None
    driver: str | None
    """Of the NVIDIA device."""
    cuda: str | None
    """That torch was built with; like the next two None for a trial on the processor."""
    cudnn: int | None
    capability: str | None
    """Compute capability of the device, `9.0`."""
    processor: str
    """Its name; a device waits for it, too."""
    processors: int
    """That this process may use."""
    variables: tuple[tuple[str, str], ...]
    """Names and values, by name, of the environment variables that decide kernels, threads or memory."""
    settings: tuple[tuple[str, str], ...]
    """The same of torch's settings, and of what was changed in the configuration of its compilers."""
    cpp_compiler: str | None
    """File name, size and time of the compiler that Inductor finds."""

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits, the same in every process of this setup."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TrialEnvironment:
    """The setup of a trial, and the machine at one moment of it."""

    setup: TrialSetup
    host: str
    affinity: tuple[int, ...] | None
    """Numbers of the processors that this process may use; None where the system does not tell."""
    processor: ProcessorState
    device: DeviceState | None
    """None on the processor, and where NVML does not know the device."""

    @property
    def fingerprint(self) -> str:
        """The setup's."""
        return self.setup.fingerprint


def device_of(inputs: Sequence[object]) -> torch.device:
    """The GPU of a program that has any of its `inputs` there, else the CPU."""
    return next((value.device for value in inputs if isinstance(value, Tensor) and value.is_cuda), torch.device("cpu"))


def trial_setup(device: torch.device, variables: Mapping[str, str] | None = None) -> TrialSetup:
    """The setup of this process for programs on `device`. `variables` are the environment's, if not this process's."""
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    cpu = torch.device("cpu")
    nvidia = nvidia_device(device)
    major_minor = torch.cuda.get_device_capability(device) if on_gpu else None
    return TrialSetup(
        frx=__version__,
        python=platform.python_version(),
        # That one knows kinds of devices, of which there may be two in a machine.
        operators=replace(measurement_environment(device.type), device_name=device_name(device if on_gpu else cpu)),
        interop_threads=torch.get_num_interop_threads(),
        triton=_version("triton"),
        driver=nvidia.driver() if nvidia is not None else None,
        cuda=torch.version.cuda if on_gpu else None,
        cudnn=torch.backends.cudnn.version() if on_gpu else None,
        capability="{}.{}".format(*major_minor) if major_minor is not None else None,
        processor=device_name(cpu),
        processors=len(_affinity() or range(os.cpu_count() or 1)),
        variables=decisive_variables(os.environ if variables is None else variables),
        settings=decisive_settings(),
        cpp_compiler=cpp_compiler(),
    )


def trial_environment(device: torch.device) -> TrialEnvironment:
    """The setup and the state of this process's machine now."""
    nvidia = nvidia_device(device)
    return TrialEnvironment(
        setup=trial_setup(device),
        host=platform.node(),
        affinity=_affinity(),
        processor=processor_state(),
        device=nvidia.state() if nvidia is not None else None,
    )


def _affinity() -> tuple[int, ...] | None:
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

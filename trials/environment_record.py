"""Record the setup of a trial, which decides whether its decision may be used again, and the machine's state.

A decision is valid for one setup, whose fingerprint keys it in the ledger. Facts that change from hour to hour are
recorded beside it and enter no fingerprint: load, clocks, host name, and the choice among equal processors.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from frx_graph.measure.machine.device_state import DeviceState
from frx_graph.measure.machine.environment_record import MeasurementEnvironment
from frx_graph.measure.machine.processor_state import ProcessorState
from frx_graph.support.allocator import Allocation


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """The setup that decides how fast two programs are relative to each other. None: unknown or absent."""

    frx: str
    python: str
    operators: MeasurementEnvironment
    """Versions of torch and oneDNN, device, CPU capability, threads, and the settings that decide kernels."""
    interop_threads: int
    triton: str | None
    driver: str | None
    cuda: str | None
    """The version of CUDA that torch was built with; this and the next two are None for a trial on the CPU."""
    cudnn: int | None
    capability: str | None
    """Compute capability of the device, `9.0`."""
    processor: str
    """The processor's name. It also matters for a device, which waits for the processor."""
    processors: int
    """The number of processors that this process may use."""
    variables: tuple[tuple[str, str], ...]
    """Names and values, by name, of the environment variables that decide kernels, threads or memory."""
    settings: tuple[tuple[str, str], ...]
    """The same for torch's settings, and for changed options of torch's compilers."""
    cpp_compiler: str | None
    """File name, size and time of the compiler that Inductor finds."""
    allocation: Allocation = Allocation.DEFAULT
    """The allocator of host memory, which decides how many page faults a step takes. Documents of before do not say:
    their programs had glibc's default, or variables that are in `variables`."""

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
    """Numbers of the processors that this process may use; None if the system does not tell."""
    processor: ProcessorState
    device: DeviceState | None
    """None on the processor, and if NVML does not know the device."""

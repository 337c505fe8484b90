"""Measure the time of a program's kernels with CUDA events around each launch, without changing the program.

`kernel_clock.cpp` is the library that is preloaded into the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from frx_graph.measure.nvcc import Nvcc

_FILE = "FRX_KERNEL_CLOCK"
"""Environment variable that names the file to write."""
_EAGER = {"CUDA_MODULE_LOADING": "EAGER"}
"""Kernels are loaded before the first launch. By default each is at its own first launch ("Lazy Loading" in the CUDA
Programming Guide), between the events, and would be timed with it."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Kernel times of one run."""

    launches: int
    """Launches of kernels, and of graphs, which count as one each."""
    timed: int
    """Launches whose time is known."""
    seconds: float
    """The sum of these times: kernels that overlap count in full."""


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The library, and the file that programs with it write to."""

    library: Path
    times: Path

    def make_environment(self, others: Mapping[str, str]) -> dict[str, str]:
        """Return `others` plus the variables that a timed program needs."""
        preloaded = " ".join(filter(None, (str(self.library), others.get("LD_PRELOAD"))))
        return {**others, "LD_PRELOAD": preloaded, _FILE: str(self.times), **_EAGER}

    def read(self) -> KernelTime | None:
        """Return and delete the last program's times; None if it wrote none, as one that did not end by `exit`."""
        try:
            launches, timed, milliseconds = self.times.read_text(encoding="ascii").split()
            found = KernelTime(int(launches), int(timed), float(milliseconds) / 1e3)
        except (OSError, ValueError):
            return None
        self.times.unlink()
        return found if math.isfinite(found.seconds) else None


def build_kernel_clock(nvcc: Nvcc, folder: Path) -> KernelClock | str:
    """Compile the clock's library into `folder` for the CUDA toolkit at hand; return the clock or what has failed."""
    source = folder / "kernel_clock.cpp"
    text = resources.files("frx_graph.measure").joinpath("kernel_clock.cpp").read_text(encoding="utf-8")
    source.write_text(text, encoding="utf-8")
    library = folder / "kernel_clock.so"
    problem = nvcc.compile_library(source, library)
    if problem is not None:
        return f"the clock of kernels cannot be compiled: {problem.splitlines()[0]}"
    return KernelClock(library, folder / "kernel_times")

"""Kernels as they are summed up from launches, made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from frx_graph.analyzers.kernels.kernel_totals import KernelSummary, KernelTotals
from frx_graph.evidence.ncu.launch import KernelLaunch

Launched = Callable[..., KernelLaunch]
Kernel = Callable[..., KernelSummary]


@pytest.fixture
def launched() -> Launched:
    def launched(kernel: str = "kernel", device: str = "0", block: int = 128, **values: float) -> KernelLaunch:
        return KernelLaunch(
            number="0",
            process="1",
            kernel=kernel,
            device=device,
            compute_capability="9.0",
            grid=(64, 1, 1),
            block=(block, 1, 1),
            source="report.csv",
            line=2,
            values={name.replace("__", "."): value for name, value in values.items()},
        )

    return launched


@pytest.fixture
def kernel(launched: Launched) -> Kernel:
    """One launch of it, with these values."""

    def kernel(name: str = "kernel", **values: float) -> KernelSummary:
        totals = KernelTotals()
        totals.add(launched(name, **values))
        (summary,) = totals.summarize_kernels()
        return summary

    return kernel

"""Describe the measured or documented bandwidth and peak arithmetic of a device, and reject implausible values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch


@dataclass(frozen=True)
class DeviceProfile:
    """One device. Bandwidth counts bytes read plus bytes written; `peak_flops` is keyed by dtype.

    `peak_kernels` names the operator that reached each peak. `under_load` means that other programs used the processors
    during the measurement, so that the device may reach more.

    The innermost dimension of a matmul or convolution operand should be a multiple of `preferred_alignment_bytes`: the
    tensor-core tile on CUDA, the vector register on a CPU.
    """

    device: str
    name: str
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[torch.dtype, float]
    preferred_alignment_bytes: int
    peak_kernels: Mapping[torch.dtype, str] = field(default_factory=dict)
    under_load: bool = False
    documented: str = ""
    """Where the maker documents bandwidth and peaks, which were not measured then; empty: they were."""

    def get_ridge_point(self, dtype: torch.dtype) -> float | None:
        """FLOPs per byte above which an operator of `dtype` is compute-bound; None where the peak is unknown."""
        peak = self.peak_flops.get(dtype)
        return None if peak is None else peak / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class ReachedSpeed:
    """Speed of one operator that was timed on the device."""

    operator: str
    dtype: torch.dtype
    flops_per_s: float


def raise_peaks(profile: DeviceProfile, reached: Iterable[ReachedSpeed]) -> DeviceProfile:
    """Return the profile with no peak below what an operator of that dtype reached.

    A dtype without a peak keeps none: one operator shows no roof.
    """
    peaks, kernels = dict(profile.peak_flops), dict(profile.peak_kernels)
    for speed in reached:
        if speed.dtype in peaks and speed.flops_per_s > peaks[speed.dtype]:
            peaks[speed.dtype] = speed.flops_per_s
            kernels[speed.dtype] = speed.operator
    return profile if peaks == profile.peak_flops else replace(profile, peak_flops=peaks, peak_kernels=kernels)


LEAST_BANDWIDTH: Mapping[str, float] = MappingProxyType({"cpu": 1e9, "cuda": 1e10})
"""Bytes per second, read plus written, by device type. A single channel of DDR2-400 carries 3.2 GB/s, the memory of a
Jetson Nano 25.6 GB/s; a copy reaches more than a third of either."""
GREATEST_BANDWIDTH: Mapping[str, float] = MappingProxyType({"cpu": 4e12, "cuda": 1e14})
"""Two sockets of Xeon Max have HBM of 1.6 TB/s each; a B200 has 8 TB/s, and a copy in its cache some times that."""
LEAST_GPU_FP32 = 1e11
"""FLOP/s. A Jetson Nano's data sheet says 236 GFLOP/s in fp32."""
_SLOWEST_CLOCK_HZ = 1e9
_FASTEST_CLOCK_HZ = 6.5e9
_MOST_UNITS = 4
"""Vector units of a core that multiply and add (Neoverse V2: four of 128 bits, Zen 5: two of 512)."""
_REACHED_SHARE = 0.25
"""A quarter of one vector multiply-add per cycle, on a slow clock: half for cores whose units are half as wide as their
registers, half for the share of the peak that torch's matrix product reaches. Only one core counts, as other programs
may use the rest."""
LEAST_BALANCE = 0.25
"""fp32 FLOPs per byte of traffic. A multiply-add for each number read from memory is 0.5; no processor with caches does
less, and the bandwidth and the peak of one machine cannot be further apart than that."""
GREATEST_RATIO: Mapping[str, float] = MappingProxyType({"cpu": 20.0, "cuda": 40.0})
"""Peak of bf16 or fp16 over that of fp32, by device type. CPU: AMX does 512 bf16 multiply-adds a cycle (8192 in the 16
cycles of a tile product), 16 times the 32 that two AVX-512 units do in fp32. GPU, by the data sheets (dense, fp32
without TF32): tensor cores are 16 times as fast on an A100, 15 times on an H100, 30 times on a B200."""


def find_implausibility(profile: DeviceProfile) -> str | None:
    """Return a sentence on the value that no such device reaches; None for a plausible profile."""
    bandwidth = profile.bandwidth_bytes_per_s
    if bandwidth < LEAST_BANDWIDTH[profile.device]:
        return f"a copy at {bandwidth / 1e9:.2g} GB/s is slower than any {_name_kind(profile)}'s"
    if bandwidth > GREATEST_BANDWIDTH[profile.device]:
        return f"a copy at {bandwidth / 1e9:.3g} GB/s is faster than any {_name_kind(profile)}'s"
    fp32 = profile.peak_flops.get(torch.float32)
    if fp32 is None:
        return None
    if fp32 < _get_least_fp32(profile):
        return f"{fp32 / 1e9:.2g} GFLOP/s in fp32 is less than {_get_least_fp32(profile) / 1e9:.3g}, which any reaches"
    if profile.device == "cpu" and fp32 > _get_greatest_fp32(profile):
        return (
            f"{fp32 / 1e9:.3g} GFLOP/s in fp32 is more than the {_get_greatest_fp32(profile) / 1e9:.0f} "
            f"of all its cores"
        )
    if fp32 < LEAST_BALANCE * bandwidth:
        return f"{fp32 / 1e9:.2g} GFLOP/s in fp32 is too little for {bandwidth / 1e9:.0f} GB/s"
    for dtype in (torch.bfloat16, torch.float16):
        ratio = profile.peak_flops.get(dtype, 0.0) / fp32
        if ratio > GREATEST_RATIO[profile.device]:
            name = str(dtype).removeprefix("torch.")
            return f"{name} was measured {ratio:.0f} times as fast as fp32, which no {_name_kind(profile)} is"
    return None


def _get_least_fp32(profile: DeviceProfile) -> float:
    """FLOP/s that one core of a CPU with such vector registers reaches, or any GPU."""
    if profile.device == "cuda":
        return LEAST_GPU_FP32
    lanes = profile.preferred_alignment_bytes // torch.float32.itemsize
    return 2 * lanes * _SLOWEST_CLOCK_HZ * _REACHED_SHARE


def _get_greatest_fp32(profile: DeviceProfile) -> float:
    """FLOP/s that all cores of this machine's CPU cannot exceed."""
    lanes = profile.preferred_alignment_bytes // torch.float32.itemsize
    return 2 * lanes * _MOST_UNITS * _FASTEST_CLOCK_HZ * (os.cpu_count() or 1)


def _name_kind(profile: DeviceProfile) -> str:
    return "GPU" if profile.device == "cuda" else "CPU"

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.measure.machine.device_profile import DeviceProfile, ReachedSpeed, find_implausibility, raise_peaks

CPU = DeviceProfile("cpu", "a processor", 3e10, {torch.float32: 2e11, torch.bfloat16: 4e11, torch.float16: 3e9}, 64)
OLD_CPU = DeviceProfile("cpu", "one slow core with 128-bit vectors", 4e9, {torch.float32: 3e9}, 16)
GPU = DeviceProfile("cuda", "a GPU", 4e12, {torch.float32: 5e13, torch.bfloat16: 7e14}, 16)
OLD_GPU = DeviceProfile("cuda", "a small GPU", 1.5e10, {torch.float32: 1.5e11}, 16)


SPEEDS = st.lists(
    st.builds(
        ReachedSpeed,
        st.sampled_from(["aten.mm", "aten.convolution"]),
        st.sampled_from([torch.float32, torch.float64]),
        st.floats(min_value=0.0, max_value=1e15),
    )
)


@given(SPEEDS)
def test_no_operator_is_faster_than_a_raised_peak(reached: list[ReachedSpeed]) -> None:
    raised = raise_peaks(CPU, reached)
    assert raised.peak_flops.keys() == CPU.peak_flops.keys()
    assert all(raised.peak_flops[dtype] >= peak for dtype, peak in CPU.peak_flops.items())
    known = [speed for speed in reached if speed.dtype in raised.peak_flops]
    assert all(speed.flops_per_s <= raised.peak_flops[speed.dtype] for speed in known)
    if raised is not CPU:
        assert (
            ReachedSpeed(raised.peak_kernels[torch.float32], torch.float32, raised.peak_flops[torch.float32]) in reached
        )


@pytest.mark.parametrize("profile", [CPU, OLD_CPU, GPU, OLD_GPU, replace(CPU, peak_flops={})])
def test_plausible_profile_is_accepted(profile: DeviceProfile) -> None:
    assert find_implausibility(profile) is None


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        (replace(CPU, peak_flops={torch.float32: 1.4e9}), "1.4 GFLOP/s in fp32 is less than 8, which any reaches"),
        (replace(OLD_CPU, peak_flops={torch.float32: 1.4e9}), "1.4 GFLOP/s in fp32 is less than 2, which any reaches"),
        (replace(CPU, bandwidth_bytes_per_s=5e8), "a copy at 0.5 GB/s is slower than any CPU's"),
        (replace(CPU, bandwidth_bytes_per_s=4e11, peak_flops={torch.float32: 5e10}), "is too little for 400 GB/s"),
        (replace(CPU, bandwidth_bytes_per_s=4.9e12), "a copy at 4.9e+03 GB/s is faster than any CPU's"),
        (replace(CPU, peak_flops={torch.float32: 1e13 * (os.cpu_count() or 1)}), "of all its cores"),
        (replace(GPU, bandwidth_bytes_per_s=5e9), "a copy at 5 GB/s is slower than any GPU's"),
        (replace(GPU, peak_flops={torch.float32: 1e10}), "10 GFLOP/s in fp32 is less than 100, which any reaches"),
    ],
)
def test_implausible_profile_is_explained(profile: DeviceProfile, reason: str) -> None:
    assert reason in str(find_implausibility(profile))


@pytest.mark.parametrize(("profile", "possible", "impossible"), [(CPU, 16, 21), (GPU, 30, 41)])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_no_device_has_a_greater_lead(
    profile: DeviceProfile, possible: int, impossible: int, half: torch.dtype
) -> None:
    def with_lead(ratio: int) -> str | None:
        fp32 = profile.peak_flops[torch.float32]
        return find_implausibility(replace(profile, peak_flops={torch.float32: fp32, half: ratio * fp32}))

    assert f"{impossible} times as fast as fp32" in str(with_lead(impossible))
    assert with_lead(possible) is None

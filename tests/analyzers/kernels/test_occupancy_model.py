"""Occupancy from what a block needs: as Nsight Compute and CUDA's own calculator have it."""

from __future__ import annotations

import random
import shutil
import subprocess
from importlib import resources, util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.analyzers.kernels.occupancy_model import (
    Limiter,
    compute_block_limits,
    compute_most_registers,
    compute_register_occupancy,
    compute_theoretical_occupancy,
    find_limiters,
)
from frx_graph.rules.gpu_profile import SmLimits, load_architectures

LIMITS = {name: card.limits for name, card in load_architectures().items() if card.limits is not None}


def test_block_limits_are_those_that_nsight_compute_gives() -> None:
    # stencil2d on an A40: 256 threads, 18 registers, no shared memory.
    limits = compute_block_limits(LIMITS["sm_86"], 256, 18, 0)
    assert (limits[Limiter.REGISTERS], limits[Limiter.WARPS], limits[Limiter.BLOCKS]) == (10, 6, 16)
    assert compute_theoretical_occupancy(LIMITS["sm_86"], 256, 18, 0) == 100.0


@pytest.mark.parametrize(("name", "most"), [("sm_75", 64), ("sm_80", 32), ("sm_86", 40), ("sm_90", 32), ("sm_120", 40)])
def test_registers_of_a_full_multiprocessor(name: str, most: int) -> None:
    assert compute_most_registers(LIMITS[name]) == most
    assert compute_register_occupancy(LIMITS[name], most) == 100.0
    assert compute_register_occupancy(LIMITS[name], most + 1) < 100.0


@given(st.sampled_from(sorted(LIMITS)), st.integers(1, 1024), st.integers(0, 255), st.integers(0, 232448))
def test_occupancy_never_grows_with_what_a_block_needs(name: str, threads: int, registers: int, shared: int) -> None:
    limits = LIMITS[name]
    here = compute_theoretical_occupancy(limits, threads, registers, shared)
    assert 0.0 <= here <= 100.0
    assert compute_theoretical_occupancy(limits, threads, registers + 8, shared) <= here
    assert compute_theoretical_occupancy(limits, threads, registers, shared + 1024) <= here


PROGRAM = """
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, sharedSm, sharedOptin, reserved, threadsSm, threads, registers, shared;
    while (std::scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &sharedSm, &sharedOptin, &reserved, &threadsSm,
                      &threads, &registers, &shared) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = major; device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = threadsSm;
        device.regsPerBlock = 65536; device.regsPerMultiprocessor = 65536; device.warpSize = 32;
        device.sharedMemPerBlock = 49152; device.sharedMemPerMultiprocessor = sharedSm; device.numSms = 1;
        device.sharedMemPerBlockOptin = sharedOptin; device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = sharedOptin; kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        state.cacheConfig = CACHE_PREFER_SHARED; state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        bool wrong = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
        std::printf("%d\\n", wrong ? -1 : result.activeBlocksPerMultiprocessor);
    }
}
"""


def _headers() -> Path | None:
    if util.find_spec("nvidia") is None:
        return None
    found = resources.files("nvidia") / "cu13" / "include"
    return Path(str(found)) if (found / "cuda_occupancy.h").is_file() else None


def _line(name: str, limits: SmLimits, needs: tuple[int, int, int]) -> str:
    major, minor = divmod(int(name[3:]), 10)
    device = (limits.shared_bytes, limits.block_shared_bytes, limits.reserved_shared_bytes, limits.threads)
    return " ".join(str(number) for number in (major, minor, *device, *needs))


@pytest.mark.skipif(shutil.which("g++") is None or _headers() is None, reason="needs g++ and NVIDIA's headers")
def test_block_count_matches_cudas_occupancy_calculator(tmp_path: Path) -> None:
    (tmp_path / "occupancy.cpp").write_text(PROGRAM)
    program = str(tmp_path / "occupancy")
    compile_ = ["g++", f"-I{_headers()}", "-o", program, str(tmp_path / "occupancy.cpp")]
    subprocess.run(compile_, check=True, capture_output=True, timeout=120)
    chance = random.Random(0)
    cases = []
    for name, limits in LIMITS.items():
        for _ in range(400):
            shared = chance.choice([0, chance.randrange(limits.block_shared_bytes)])
            cases.append((name, limits, (chance.randint(1, 1024), chance.randint(1, 255), shared)))
    lines = "\n".join(_line(*case) for case in cases)
    said = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=60)
    ours = [min(compute_block_limits(limits, *needs).values()) for _, limits, needs in cases]
    theirs = [int(line) for line in said.stdout.split()]
    assert len(theirs) == len(cases)
    assert [case[0::2] for case, one, other in zip(cases, ours, theirs, strict=True) if one != other] == []


BLOCK_LIMITS = {
    "block_limit_registers": 16.0,
    "block_limit_shared_memory": 32.0,
    "block_limit_warps": 12.0,
    "block_limit_blocks": 24.0,
    "block_limit_barriers": 24.0,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"block_limit_registers": 2.0}, (Limiter.REGISTERS,)),
        ({"block_limit_shared_memory": 2.0}, (Limiter.SHARED_MEMORY,)),
        ({"block_limit_registers": 1.0, "block_limit_shared_memory": 1.0}, (Limiter.REGISTERS, Limiter.SHARED_MEMORY)),
        ({"block_limit_barriers": 1.0}, (Limiter.BARRIERS,)),
        ({}, (Limiter.WARPS,)),
        ({"block_limit_blocks": 8.0}, (Limiter.BLOCKS,)),
    ],
)
def test_the_smallest_limit(changed: dict[str, float], expected: tuple[Limiter, ...]) -> None:
    assert find_limiters({**BLOCK_LIMITS, **changed, "theoretical_occupancy": 83.33}) == expected


def test_full_occupancy_has_no_limiter() -> None:
    assert find_limiters({**BLOCK_LIMITS, "theoretical_occupancy": 100.0}) == ()


def test_small_block_alone_is_not_a_limiter() -> None:
    assert find_limiters({"theoretical_occupancy": 16.67}) == ()

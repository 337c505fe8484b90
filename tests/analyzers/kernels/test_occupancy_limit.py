"""What limits occupancy is the smallest of Nsight Compute's own block limits, and nothing else."""

from __future__ import annotations

import pytest

from frx_graph.analyzers.kernels.occupancy_limit import Limiter, limiters

LIMITS = {
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
    assert limiters({**LIMITS, **changed, "theoretical_occupancy": 83.33}) == expected


def test_nothing_limits_what_is_full() -> None:
    assert limiters({**LIMITS, "theoretical_occupancy": 100.0}) == ()


def test_a_small_block_is_no_limit_by_itself() -> None:
    assert limiters({"theoretical_occupancy": 16.67}) == ()

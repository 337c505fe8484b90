"""Other programs' share of the processors, by clocks and a statistics file that the test sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frx_graph.evidence.disturbance import DISTURBED_SHARE, disturbance

WALL_SECONDS = 10.0
AVAILABLE = WALL_SECONDS * (os.cpu_count() or 1)


def _write(file: Path, busy_seconds: float) -> None:
    ticks = int(busy_seconds * os.sysconf("SC_CLK_TCK"))
    file.write_text(f"cpu  {ticks} 0 0 12345 6 0 0 0 0 0\ncpu0 1 2 3\n")


@pytest.mark.parametrize("own_share", [0.0, 0.5])
@pytest.mark.parametrize(
    ("others", "disturbed"), [(0.0, False), (0.9 * DISTURBED_SHARE, False), (1.1 * DISTURBED_SHARE, True), (0.5, True)]
)
def test_the_share_of_others_decides(tmp_path: Path, own_share: float, others: float, disturbed: bool) -> None:
    file = tmp_path / "stat"
    _write(file, 100.0)
    wall, own = iter([7.0, 7.0 + WALL_SECONDS]), iter([3.0, 3.0 + own_share * AVAILABLE])
    with disturbance(file, wall_clock=lambda: next(wall), own_clock=lambda: next(own)) as measured:
        _write(file, 100.0 + (own_share + others) * AVAILABLE)
        assert measured() is disturbed


@pytest.mark.parametrize("content", [None, "", "cpu 1 2\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"])
def test_a_system_that_does_not_tell_is_not_disturbed(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "stat"
    if content is not None:
        file.write_text(content)
    with disturbance(file) as measured:
        assert measured() is False

"""Other programs' share of the processors, read from a statistics file that the test writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from frx_graph.evidence.disturbance import disturbance


def _write(file: Path, busy_seconds: float) -> None:
    ticks = int(busy_seconds * os.sysconf("SC_CLK_TCK"))
    file.write_text(f"cpu  {ticks} 0 0 12345 6 0 0 0 0 0\ncpu0 1 2 3\n")


@pytest.mark.parametrize(("others", "disturbed"), [(0.0, False), (0.05, False), (0.5, True)])
def test_the_share_of_others_decides(tmp_path: Path, others: float, disturbed: bool) -> None:
    file = tmp_path / "stat"
    _write(file, 100.0)
    with disturbance(file) as measured:
        started = time.perf_counter()
        time.sleep(0.2)
        _write(file, 100.0 + others * (os.cpu_count() or 1) * (time.perf_counter() - started))
        assert measured() is disturbed


@pytest.mark.parametrize("content", [None, "", "cpu 1 2\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"])
def test_a_system_that_does_not_tell_is_not_disturbed(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "stat"
    if content is not None:
        file.write_text(content)
    with disturbance(file) as measured:
        assert measured() is False

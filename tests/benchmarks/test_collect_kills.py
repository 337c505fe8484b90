"""The benchmark that kills collects, in short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "collect_kills.py"


@pytest.mark.integration
def test_killed_collects_leave_bundles_that_can_be_analysed_and_no_process() -> None:
    ran = subprocess.run([sys.executable, str(BENCHMARK), "--kills", "8"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["kills"] == 8
    assert figures["killed"] == {"collector": 2, "its process group": 2, "workload": 2, "guard": 2}
    assert figures["analysed"] + figures["before_the_folder"] == 8
    assert (figures["refused"], figures["failed"], figures["processes_left"]) == (0, [], 0)

"""Runs `opinfo_sweep_cases.py` in a process of its own: importing torch's test database changes settings of the process
for good, and other tests then fail."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("opinfo_sweep_cases.py")


@pytest.mark.integration
@pytest.mark.parametrize("selection", ["not integration", "integration"])
def test_operators_of_torchs_own_database(selection: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", selection, "-p", "no:cacheprovider", str(CASES)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr

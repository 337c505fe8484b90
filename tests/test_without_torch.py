"""Rooms that read files do so in an interpreter without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRACE = Path(__file__).parent / "data" / "traces" / "hta_alexnet_one_forward.json.gz"

IMPORT_ROOMS = """
import importlib, pkgutil, sys

# Looks for the folder of torch, and does not import it.
import frx_graph.capture.call_site

assert "torch" not in sys.modules
sys.modules["torch"] = None
rooms = "analyze analyzers evidence fleet ledger reports rules runs.collect runs.tune service"
names = []
for room in rooms.split():
    package = importlib.import_module(f"frx_graph.{room}")
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    names += [module.name for module in found]
# Migrations are run by Alembic alone.
names = [name for name in names if not name.startswith("frx_graph.ledger.migrations")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""

ANALYZE = """
import sys
from frx_graph.cli.main import run

code = run(["analyze", *sys.argv[1:], "--exit-zero"])
sys.exit(code or ("torch was imported" if "torch" in sys.modules else 0))
"""


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
def test_every_module_of_these_rooms_is_imported_without_torch() -> None:
    assert int(run_python(IMPORT_ROOMS)) > 300


@pytest.mark.parametrize("options", [(), ("--trace",)], ids=["run", "layout advice"])
def test_a_trace_is_analyzed_without_torch(options: tuple[str, ...]) -> None:
    assert "hta_alexnet" in run_python(ANALYZE, *options, str(TRACE))

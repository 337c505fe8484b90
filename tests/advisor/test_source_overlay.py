"""Changed source is imported in place of a file, in this process only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import inspect, sys
from frx_graph.advisor.source_overlay import overlay_sources
overlay_sources({{{original!r}: {other!r}}})
sys.path.insert(0, {folder!r})
import model
print(model.f(), model.__file__, inspect.getsource(model.f).strip())
"""


def test_changed_file_is_imported_under_the_path_of_the_original(tmp_path: Path) -> None:
    original, other = tmp_path / "model.py", tmp_path / "other.txt"
    original.write_text("def f():\n    return 'as it was'\n")
    # Compiled code of the original must not be taken for that of the change.
    subprocess.run([sys.executable, "-c", "import model"], cwd=tmp_path, check=True)
    compiled = {path: path.read_bytes() for path in tmp_path.rglob("*.pyc")}
    other.write_bytes("# ä\n\n\ndef f():\n    return 'changed'\n".encode())
    program = PROGRAM.format(original=str(original), other=str(other), folder=str(tmp_path))
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.split("\n", 1)[0] == f"changed {original} def f():"
    assert "return 'changed'" in ran.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pyc")} == compiled
    assert "as it was" in original.read_text()

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.reports.render.source_path import cut_path, get_project_path, shorten_path

ROOT = Path("/home/me/project")


@pytest.mark.parametrize(
    ("file", "short", "project"),
    [
        ("/home/me/project/models/net.py", "models/net.py", "models/net.py"),
        ("models/net.py", "models/net.py", "models/net.py"),
        ("/home/me/project/.venv/lib/python3.11/site-packages/vision/a.py", "vision/a.py", None),
        ("/usr/lib/python3/dist-packages/vision/a.py", "vision/a.py", None),
        ("/home/me/project-two/a.py", "/home/me/project-two/a.py", None),
        ("../outside.py", "../outside.py", None),
        ("/home/me/project", "/home/me/project", None),
        ("<unknown>", "<unknown>", None),
        ("<ipython-input-3>", "<ipython-input-3>", None),
        ("", "", None),
    ],
)
def test_paths(file, short, project):
    assert shorten_path(file, ROOT) == short
    assert get_project_path(file, ROOT) == project


def test_end_of_a_long_path_is_shown() -> None:
    assert cut_path("/a/report.csv", 20) == "/a/report.csv"
    assert cut_path("/" + "x" * 300 + "/report.csv", 15) == "…xxx/report.csv"
    assert cut_path("/\x1b[31m\n" + "x" * 300, 10) == "…" + "x" * 9

"""What was changed in a script is what `patch` makes of the other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from frx_graph.reports.init_document import make_diff, render_diff


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1\nb = 2", "a = 1\nwith c:\n    b = 2"),
        ("a = 1\nb = 2", "import c\na = 1\nb = 2"),
        ("a = 1\n\f\nb = 2\n", "a = 1\n\f\nwith c:\n    b = 2\n"),
        ("a = '\x85\u2028\x1c'\nb = 2\n", "import c\na = '\x85\u2028\x1c'\nb = 2\n"),
        ("a = 1\r\nb = 2\r\n", "import c\r\na = 1\r\nb = 2\r\n"),
    ],
)
@pytest.mark.parametrize("back", [False, True])
def test_patch_takes_the_difference(before: str, after: str, back: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes((after if back else before).encode())
    subprocess.run(
        ["patch", "--binary", *(["--reverse"] if back else []), "train.py"],
        input=make_diff("train.py", before, after).encode(),
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert path.read_bytes() == (before if back else after).encode()


def test_each_line_is_shown_as_one() -> None:
    shown = render_diff(make_diff("a.py", "a\n\f\nb", "a\n\f\n\x1b[1mc\x0cd"), color=False)
    assert shown.splitlines()[3:] == [
        " a",
        "",
        "-b",
        "\\ No newline at end of file",
        "+[1mc d",
        "\\ No newline at end of file",
    ]

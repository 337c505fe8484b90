"""Makes the pictures of the README and of these pages anew: a terminal as SVG, and the HTML report as PNG.

    python docs/record_pictures.py [--chromium PATH]

The report is photographed by a headless Chromium; without one only the terminal is recorded.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
COMMAND = ("advise", "examples/attention.py:build", "--observe", "--top", "2")
WIDTH = 80
_THEME = TerminalTheme(
    (30, 33, 39),
    (222, 226, 232),
    [
        (30, 33, 39),
        (232, 98, 98),
        (126, 201, 119),
        (229, 192, 107),
        (97, 165, 233),
        (198, 131, 221),
        (86, 194, 202),
        (222, 226, 232),
    ],
)
_FONTS = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def recorded(arguments: tuple[str, ...]) -> str:
    """What `frx` prints on a terminal of `WIDTH` columns, with its colours."""
    leader, follower = pty.openpty()
    # No spinner: standard error is no terminal.
    environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    program = (
        "import fcntl, struct, sys, termios;"
        f"fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 60, {WIDTH}, 0, 0));"
        "from frx_graph.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT):
        os.close(follower)
        printed = io.BytesIO()
        while True:
            try:
                part = os.read(leader, 1 << 16)
            except OSError:
                # What Linux says when the other end is closed.
                break
            if not part:
                break
            printed.write(part)
    os.close(leader)
    return printed.getvalue().decode().replace("\r\n", "\n")


def terminal_svg(arguments: tuple[str, ...]) -> str:
    """A window with the command and what it prints. It names no font of another server."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
    console.print(Text(f"$ frx {' '.join(arguments)}", "bold"))
    console.print(Text.from_ansi(recorded(arguments).rstrip()), end="\n")
    svg = _FONTS.sub("", console.export_svg(title="frx", theme=_THEME))
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


def report_png(chromium: str) -> bytes:
    """The HTML report of the same model."""
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "report.html", Path(folder) / "report.png"
        arguments = ["advise", COMMAND[1], "--observe", "--exit-zero", "--format", "html", "--output", str(page)]
        subprocess.run([sys.executable, "-m", "frx_graph", *arguments], cwd=ROOT, check=True)
        photograph(chromium, page, picture, 1100, 1150)
        return picture.read_bytes()


def photograph(chromium: str, page: Path, picture: Path, width: int, height: int) -> None:
    """The top of a page, as a browser window of that size shows it."""
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--force-color-profile=srgb"]
    where = [f"--window-size={width},{height}", f"--screenshot={picture}", page.absolute().as_uri()]
    subprocess.run([chromium, *options, *where], check=True, capture_output=True, timeout=120)


def main() -> None:
    """Both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "advise.svg").write_text(terminal_svg(COMMAND), encoding="utf-8")
    if given.chromium is None:
        print("no Chromium: report.png stays as it is", file=sys.stderr)
        return
    (PICTURES / "report.png").write_bytes(report_png(given.chromium))


if __name__ == "__main__":
    main()

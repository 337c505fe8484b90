"""A workload's output where somebody does not read it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = (
    "import sys; from pathlib import Path; from frx_graph.runs.workload.workload import run_workload\n"
    "end = run_workload(['sh', '-c', 'head -c 1000000 /dev/zero; sleep 60'], log=Path(sys.argv[1]))\n"
    "print(end.exit_code, end.signal, file=sys.stderr)"
)
SECONDS = 30


def test_unread_output_does_not_prevent_termination(tmp_path: Path) -> None:
    """A pager that waits: the first signal ends the workload, the second stops waiting for the pager."""
    log = tmp_path / "log"
    read, write = os.pipe()
    command = [sys.executable, "-c", PROGRAM, str(log)]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, start_new_session=True)
    os.close(write)
    deadline = time.monotonic() + SECONDS
    # What a pipe holds, and the piece that waits to be written into it.
    while not log.exists() or log.stat().st_size < 1 << 16:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.7)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    os.close(read)
    assert err.decode().splitlines()[0] == f"None {signal.SIGTERM:d}"
    assert b"Traceback" not in err
    assert process.returncode == 0

"""A program that tells of its steps and does nothing else: each lasts as long as its environment says.

`TINY_MS` is a step's time, `TINY_FAST=1` halves it; `TINY_EXIT`, the exit code at its end; `TINY_LOSS`, what it tells;
`TINY_STEPS`, how many steps it has in all; `TINY_SIZE`, the samples of a step; `TINY_CHILD=1` starts a process in a
session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    milliseconds = float(os.environ.get("TINY_MS", "3")) / (2 if os.environ.get("TINY_FAST") == "1" else 1)
    most = min(int(os.environ.get("FRX_TUNE_MAX_STEPS", "100000")), int(os.environ.get("TINY_STEPS", "100000")))
    loss = os.environ.get("TINY_LOSS", "1.0")
    if os.environ.get("TINY_CHILD") == "1":
        code = "import time\nwhile True: time.sleep(0.01)"
        subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    size = int(os.environ.get("FRX_BATCH_SIZE", os.environ.get("TINY_SIZE", "8")))
    print("hello")
    with Path(os.environ["FRX_RAW_TRACE_PATH"]).open("a", buffering=1) as events:
        write(events, "shape_snapshot", {"of": "batch", "layout": 0, "shapes": {"x": [size, 1]}, "batch_size": size})
        for step in range(most):
            time.sleep(milliseconds / 1e3)
            payload = {"loss": float(loss) if loss != "NaN" else "NaN", "metrics": {}, "batch_layout": 0}
            write(events, "step_end", payload, step)
    sys.exit(int(os.environ.get("TINY_EXIT", "0")))


def write(events, kind: str, payload: dict[str, object], step: int | None = None) -> None:
    event = {
        "event_type": kind,
        "timestamp_ns": time.time_ns(),
        "pid": os.getpid(),
        "step_id": step,
        "duration_ns": 1,
        "payload": payload,
    }
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    main()

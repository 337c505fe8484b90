"""Time and memory of advice for a GPU that is not here, on the zoo and on two large models.

    python benchmarks/absent_gpu.py [--gpu h100] [--dtype bfloat16] [--targets resnet18,llama_70b] [--json FILE]

Each is one `frx advise --for` in a fresh process. Networks of the zoo may take 60 s and 2 GB, inference and training;
large models 240 s and 6 GB. Exit code 1 if one takes more, or cannot be advised on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tabulate import tabulate
from zoo import ZOO

FOLDER = Path(__file__).parent
LARGE = ("llama_70b", "sdxl_unet")
ZOO_LIMITS, LARGE_LIMITS = (60.0, 2.0), (240.0, 6.0)
"""Seconds, and GB of resident memory."""


@dataclass(frozen=True)
class Row:
    """One run of `frx advise`. `copies` a step are predicted."""

    target: str
    train: bool
    seconds: float
    gigabytes: float
    operators: int
    copies: int
    findings: int
    not_analysed: tuple[str, ...]
    error: str = ""

    @property
    def limits(self) -> tuple[float, float]:
        """Seconds and GB that it may take."""
        return LARGE_LIMITS if self.target in LARGE else ZOO_LIMITS

    @property
    def holds(self) -> bool:
        """True if it was advised on within its limits."""
        return not self.error and self.seconds <= self.limits[0] and self.gigabytes <= self.limits[1]


def advise(name: str, train: bool, gpu: str, dtype: str) -> Row:
    """Advise in a fresh process."""
    file = "large_models.py" if name in LARGE else "zoo.py"
    command = [sys.executable, "-m", "frx_graph", "advise", f"{FOLDER / file}:{name}", "--for", gpu]
    command += ["--dtype", dtype, "--json", "--exit-zero", *(["--train"] if train else [])]
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        # The memory of this child alone: `getrusage` has the largest of all.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds, gigabytes = time.monotonic() - began, usage.ru_maxrss * 1024 / 1e9
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            return Row(name, train, seconds, gigabytes, 0, 0, 0, (), "".join(last)[:300])
        found = json.loads(out.read())
    totals = found["totals"]
    parts = tuple(f"{one['subject']}: {one['reason']}"[:160] for one in found["refusals"])
    return Row(
        name,
        train,
        round(seconds, 1),
        round(gigabytes, 2),
        totals["ops_scanned"],
        totals["copies_per_step"],
        len(found["findings"]),
        parts,
    )


def main() -> int:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [entry.name for entry in ZOO]
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--targets", default=",".join((*names, *LARGE)))
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    rows = []
    for name in asked.targets.split(","):
        for train in (False,) if name in LARGE else (False, True):
            rows.append(advise(name, train, asked.gpu, asked.dtype))
            print(json.dumps(asdict(rows[-1])), flush=True)
    table = [
        (row.target, "training" if row.train else "inference", row.seconds, row.gigabytes, row.operators, row.copies)
        for row in rows
    ]
    print(tabulate(table, ["target", "mode", "s", "GB", "operators", "copies a step"]))
    if asked.json is not None:
        document = {"gpu": asked.gpu, "dtype": asked.dtype, "torch": torch.__version__, "rows": list(map(asdict, rows))}
        asked.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    missed = [row for row in rows if not row.holds]
    for row in missed:
        print(f"{row.target}: {row.error or f'{row.seconds:.0f} s, {row.gigabytes:.1f} GB'}, {row.limits} are allowed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Collects that are killed at random moments: what is on disk can be analysed, and nothing is left running.

    python benchmarks/collect_kills.py --kills 200

Each round collects a small workload, which records steps and has a child in a session of its own, and kills by SIGKILL
after a random time the collector, its whole process group, the workload, or the guard between them. Then the folder is
analysed, and the zip if there is one, and no process of the run may be left five seconds later.
Prints figures as JSON; exit code 1 where a bundle could not be analysed, or a process was left.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from frx_graph.analyze.run import analyze_bundle
from frx_graph.cli.commands import app  # noqa: F401 - it imports torch, once and not in each round
from frx_graph.cli.main import run
from frx_graph.errors import EvidenceError, summarize_error
from frx_graph.evidence.run import bundle_layout

MARK = "FRX_KILLED_COLLECT"
GONE_SECONDS = 5.0
LONGEST_LIFE_SECONDS = 1.6
"""A collect that is left alone takes 1.2 s here."""
SAY_SECONDS = 20.0
WORKLOAD = """
import json, os, subprocess, time
import frx_graph as frx

subprocess.Popen(["sleep", "60"], start_new_session=True)
frx.init(job_name="killed")
for step in range(60):
    with frx.step_context(step) as marked:
        time.sleep(0.01)
        marked.record(loss=1 / (step + 1))
    print("step", step, flush=True)
os.makedirs("profiles", exist_ok=True)
with open("profiles/profiler_trace.json", "w") as file:
    json.dump({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": n * 10.0,
                                "dur": 5.0, "args": {}} for n in range(2000)]}, file)
"""


class Victim(enum.StrEnum):
    """What is killed."""

    COLLECTOR = "collector"
    GROUP = "its process group"
    WORKLOAD = "workload"
    GUARD = "guard"


@dataclasses.dataclass
class Figures:
    kills: int = 0
    killed: dict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    came_too_late: int = 0
    """The collect had ended by itself: these count as kills, since the moment was random."""
    before_the_folder: int = 0
    states: dict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    """Of the metadata, how far the run had come."""
    analysed: int = 0
    analysed_steps: int = 0
    zips_analysed: int = 0
    refused: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    processes_left: int = 0
    slowest_end_seconds: float = 0.0
    """From the kill to the end of the last process."""
    seconds: float = 0.0


def kill_one(folder: Path, victim: Victim, life: float, figures: Figures) -> None:
    """Collect in a folder of its own, kill, and look."""
    mark = f"{os.getpid()}-{folder.name}"
    collector = started_collect(folder, mark)
    time.sleep(life)
    guards = guards_of(collector)
    figures.came_too_late += os.waitid(os.P_PID, collector, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    killed = time.monotonic()
    match victim:
        case Victim.COLLECTOR:
            os.kill(collector, signal.SIGKILL)
        case Victim.GROUP:
            os.killpg(collector, signal.SIGKILL)
        case Victim.WORKLOAD | Victim.GUARD:
            for guard in guards:
                with contextlib.suppress(psutil.Error):
                    for process in guard.children() if victim is Victim.WORKLOAD else [guard]:
                        process.kill()
    os.waitpid(collector, 0)
    while left := marked(mark):
        if time.monotonic() > killed + GONE_SECONDS:
            figures.processes_left += len(left)
            for process in left:
                process.kill()
            break
        time.sleep(0.02)
    figures.slowest_end_seconds = round(max(figures.slowest_end_seconds, time.monotonic() - killed), 2)
    figures.kills += 1
    figures.killed[victim] += 1
    look(folder, figures)


def started_collect(folder: Path, mark: str) -> int:
    """The number of a process that collects, in a session of its own."""
    collector = os.fork()
    if collector:
        return collector
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        os.environ |= {MARK: mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        folder.mkdir()
        os.chdir(folder)
        arguments = ["--run-id", "run-killed", "--sample-interval-ms", "20", "--artifact-dir", "profiles"]
        os._exit(run(["collect", *arguments, "--", sys.executable, "-c", WORKLOAD]))
    finally:
        os._exit(70)


def guards_of(collector: int) -> list[psutil.Process]:
    try:
        return psutil.Process(collector).children()
    except psutil.Error:
        return []


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have the mark and run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def look(folder: Path, figures: Figures) -> None:
    bundle = folder / "runs" / "run-killed"
    if not bundle.exists():
        figures.before_the_folder += 1
        return
    try:
        metadata = json.loads((bundle / bundle_layout.METADATA).read_bytes())
        figures.states[metadata["state"]] += 1
        figures.analysed_steps += bool(analyze_bundle(bundle).document.result.step_count)
        figures.analysed += 1
        archive = bundle.with_suffix(".zip")
        if archive.exists():
            analyze_bundle(archive)
            figures.zips_analysed += 1
    except EvidenceError as error:
        figures.refused += 1
        print(f"refused: {error}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        figures.failed.append(summarize_error(error))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    figures = Figures()
    begun = said = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.kills):
            # In turn, so that a short run has them all, too.
            victim = list(Victim)[number % len(Victim)]
            kill_one(Path(folder, str(number)), victim, draw.uniform(0, LONGEST_LIFE_SECONDS), figures)
            if time.monotonic() > said + SAY_SECONDS:
                said = time.monotonic()
                print(f"{figures.kills} killed, {figures.analysed} analysed", file=sys.stderr)
    figures.seconds = round(time.monotonic() - begun, 1)
    print(json.dumps(vars(figures), indent=2))
    return 1 if figures.failed or figures.refused or figures.processes_left else 0


if __name__ == "__main__":
    sys.exit(main())

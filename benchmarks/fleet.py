"""How fast `frx fleet` is, and how much memory it takes: thousands of runs, folders and zips of them, on this machine.

    python benchmarks/fleet.py [--bundles 10000] [--recorded FOLDER ...] [--json benchmarks/results/fleet.json]

Bounds, of 10,000 bundles on two processors: 60 seconds, and 1 GB of all processes together. Exit code 1 when one is
broken, or when the totals are not those of what was written. Other numbers of bundles are not judged.

The bundles are made of runs that were recorded: `frx collect` runs `examples/train.py`, or `--recorded` names bundles
that it has written before; beside it stands the same run with a profiler's trace (a real one, of ResNet-50, from the
tests' data). Each bundle has events and call sites of its own, and a summary of exactly these files. Every other one is
a zip; some are there twice, as folder and as zip; one in a hundred has no summary, so that it is analysed from its
events, and one in five hundred is damaged. `frx fleet` runs in a process of its own, and reads what was just written,
so that no disk is waited for. Memory is looked at five times a second, of the whole tree: `pss` counts a page that
several processes share once, `rss` in each of them. `pss` is judged.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from frx_graph.evidence.run.bundle import open_bundle

ROOT = Path(__file__).parent.parent
TRACE = ROOT / "tests" / "data" / "traces" / "kineto_resnet50_two_steps.pt.trace.json.gz"
JUDGED = 10_000
SECONDS_BOUND = 60.0
BYTES_BOUND = 1_000_000_000
POLL_SECONDS = 0.2
"""Reading what pages are shared takes some milliseconds of each process."""
SITES = 400
"""Call sites of all runs together."""
NO_SUMMARY, DAMAGED, TWICE = 100, 500, 50
"""One in so many."""
FLEET = "from frx_graph.cli.main import main; main()"


@dataclass(frozen=True)
class Written:
    """What was written: bundles of runs that can be read, among them some twice, and damaged ones."""

    readable: int
    twice: int
    without_summary: int
    damaged: int
    with_trace: int
    bytes: int


@dataclass(frozen=True)
class Cost:
    """What `frx fleet` took, from its start to its end."""

    bundles: int
    seconds: float
    bundles_per_second: float
    cpu_seconds: float
    peak_pss_bytes: int
    peak_rss_bytes: int
    processes: int


@dataclass(frozen=True)
class Base:
    """A recorded bundle in memory: its files by name, and its summary."""

    files: dict[str, bytes]
    summary: dict[str, Any]


def record(folder: Path) -> Path:
    """A bundle of `examples/train.py`."""
    collect = [sys.executable, "-c", FLEET, "collect", "--quiet", "--out", str(folder), "--run-id", "run-recorded"]
    subprocess.run([*collect, "--", sys.executable, str(ROOT / "examples" / "train.py")], check=True, env=environment())
    return folder / "run-recorded"


def environment() -> dict[str, str]:
    """With this very package on the path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def bases(recorded: Sequence[Path]) -> list[Base]:
    """Each bundle as it was recorded, and with a profiler's trace."""
    from frx_graph.analyze.run import analyze_files
    from frx_graph.reports.render.document import to_json

    found = []
    for path in recorded:
        for trace in (None, TRACE):
            with open_bundle(path) as bundle, tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                files = {
                    bundle.get_relative_name(file): file.read_bytes()
                    for file in bundle.root.rglob("*")
                    if file.is_file()
                }
                files.pop("derived/summary.json", None)
                if trace is not None:
                    files[f"profiler/{trace.name}"] = trace.read_bytes()
                write_folder(folder, files)
                with open_bundle(folder) as copied:
                    summary = to_json(analyze_files(copied))["result"]
                found.append(Base(files, summary))
    return found


def variant(base: Base, number: int) -> dict[str, bytes]:
    """Files of a run like it, with events and call sites of its own, and a summary of these."""
    files = dict(base.files)
    # The events of the same run, some nanoseconds later.
    files["raw/trace.jsonl"] += f'{{"event_type": "mark_{number}", "timestamp_ns": {number + 1}}}\n'.encode()
    summary = {**base.summary, "run_id": f"run-{number:06d}"}
    summary["sources"] = [
        {**source, "bytes": len(files[source["path"]]), "sha256": hashlib.sha256(files[source["path"]]).hexdigest()}
        for source in summary["sources"]
    ]
    if (trace := summary["trace"]) is not None:
        layout = [_elsewhere(work, number * 7 + index) for index, work in enumerate(trace["layout"])]
        summary["trace"] = {**trace, "layout": layout}
    files["derived/summary.json"] = json.dumps(summary).encode()
    return files


def _elsewhere(work: dict[str, Any], number: int) -> dict[str, Any]:
    """A finding at another place of the program."""
    place = number % SITES
    site = {"file": f"project/models/part_{place % 20}.py", "line": place + 1, "function": "forward", "module_path": ""}
    return {**work, "site": site, "fingerprint": hashlib.sha256(f"{work['rule']} {place}".encode()).hexdigest()[:32]}


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_zip(path: Path, files: dict[str, bytes], root: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(f"{root}/{name}", content)


def write_bundles(folder: Path, kinds: Sequence[Base], count: int) -> Written:
    """`count` bundles, in folders of a thousand."""
    twice = without = damaged = traced = 0
    number = written = 0
    while written < count:
        base = kinds[number % len(kinds)]
        name = f"run-{number:06d}"
        home = folder / f"{number // 1000:03d}"
        home.mkdir(exist_ok=True)
        files = variant(base, number)
        if number % DAMAGED == DAMAGED - 1:
            (home / f"{name}.zip").write_bytes(b"PK\x03\x04 and no more")
            damaged += 1
        else:
            if number % NO_SUMMARY == NO_SUMMARY - 1:
                del files["derived/summary.json"]
                without += 1
            traced += base.summary["trace"] is not None
            again = number % TWICE == 0 and written + 1 < count
            if number % 2 or again:
                write_folder(home / name, files)
            if not number % 2 or again:
                write_zip(home / f"{name}.zip", files, name)
            twice += again
            written += again
        written += 1
        number += 1
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Written(count - damaged, twice, without, damaged, traced, size)


def measure(folder: Path, output: Path, bundles: int) -> tuple[Cost, dict[str, Any]]:
    """`frx fleet` on the folder, and its document."""
    command = [sys.executable, "-c", FLEET, "fleet", str(folder), "--json", "--output", str(output), "--quiet"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment(), start_new_session=True)
    leader = psutil.Process(process.pid)
    pss = rss = seen = 0
    cpu: dict[int, float] = {}
    while process.poll() is None:
        members = [leader]
        with contextlib.suppress(psutil.Error):
            members += leader.children(recursive=True)
        used = [memory for member in members for memory in _memory(member, cpu)]
        pss, rss = max(pss, sum(one for one, _ in used)), max(rss, sum(one for _, one in used))
        seen = max(seen, len(used))
        time.sleep(POLL_SECONDS)
    seconds = time.perf_counter() - begin
    if process.returncode not in (0, 1):
        raise SystemExit(f"frx fleet ended with exit code {process.returncode}")
    cost = Cost(bundles, seconds, bundles / seconds, sum(cpu.values()), pss, rss, seen)
    return cost, json.loads(output.read_text())


def _memory(process: psutil.Process, cpu: dict[int, float]) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(psutil.Error, OSError):
        full = process.memory_full_info()
        times = process.cpu_times()
        cpu[process.pid] = times.user + times.system
        yield full.pss, full.rss


def broken_bounds(cost: Cost) -> list[str]:
    """What is above its bound."""
    broken = []
    if cost.bundles == JUDGED and cost.seconds >= SECONDS_BOUND:
        broken.append(f"{cost.seconds:.1f} s for {cost.bundles:,} bundles (bound {SECONDS_BOUND:.0f})")
    if cost.bundles == JUDGED and cost.peak_pss_bytes >= BYTES_BOUND:
        broken.append(f"{cost.peak_pss_bytes / 1e6:,.0f} MB (bound {BYTES_BOUND / 1e6:,.0f})")
    return broken


def wrong_totals(written: Written, document: dict[str, Any]) -> list[str]:
    """Where the document does not say what was written."""
    bundles, runs = document["bundles"], document["runs"]
    expected = {
        "read": (bundles["read"], written.readable),
        "twice": (bundles["twice"], written.twice),
        "analysed anew": (bundles["analysed_anew"], written.without_summary),
        "problems": (bundles["problems"], written.damaged),
        "runs": (runs["runs"], written.readable - written.twice),
        "with trace": (runs["with_trace"], written.with_trace),
    }
    return [f"{name}: {said}, not {true}" for name, (said, true) in expected.items() if said != true]


def machine() -> dict[str, Any]:
    """What the figures are of."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("frx-graph", "duckdb", "pydantic", "torch")},
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundles", type=int, default=JUDGED, help="how many are made")
    parser.add_argument("--recorded", type=Path, nargs="*", default=[], help="bundles that they are made of")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="frx-fleet-") as name:
        folder = Path(name)
        kinds = bases(options.recorded or [record(folder / "recorded")])
        (folder / "bundles").mkdir()
        written = write_bundles(folder / "bundles", kinds, options.bundles)
        here = machine()
        cost, document = measure(folder / "bundles", folder / "fleet.json", options.bundles)
    print(
        f"{cost.bundles:,} bundles ({written.bytes / 1e6:,.0f} MB) in {cost.seconds:.1f} s: "
        f"{cost.bundles_per_second:,.0f} a second; {cost.cpu_seconds:.1f} s of processors; "
        f"at most {cost.peak_pss_bytes / 1e6:,.0f} MB (rss {cost.peak_rss_bytes / 1e6:,.0f}) "
        f"in {cost.processes} processes"
    )
    broken = broken_bounds(cost) + wrong_totals(written, document)
    print(*broken, sep="\n", end="\n" if broken else "")
    if options.json is not None:
        figures = {"machine": here, "written": asdict(written), "cost": asdict(cost), "broken": broken}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

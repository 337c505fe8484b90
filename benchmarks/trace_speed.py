"""How fast `frx analyze TRACE` reads, and how much memory it takes, on a trace as large as asked for.

    python benchmarks/trace_speed.py TRACE [--megabytes 300] [--plain]

repeats a real trace behind itself, times and ids shifted, laid out as torch writes it, until it has that many megabytes
(decimal, uncompressed); `--plain` analyses it as JSON, else as gzipped JSON, too. Each is done in a process of its own.
Times are of the processor, since other work may share it; the rate of `json.load` alone stands beside them.
Exit code 1 where it takes more than 1.5 GB (of more than 1 GB of JSON, in proportion), or less than 20 MB a second.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frx_graph.analyze.trace import analyze_parsed_trace
from frx_graph.evidence.trace.torch_trace import read_torch_trace

LEAST_MB_PER_S = 20.0
MOST_MB = 1500.0
"""For a trace of 1 GB."""
_IDS = ("correlation", "External id", "external id", "Sequence number")
_IDS_APART = 10_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--plain", action="store_true", help="not gzipped as well")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.trace)
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        write(arguments.trace, plain, arguments.megabytes * 1_000_000)
        megabytes = plain.stat().st_size / 1e6
        files = [plain]
        if not arguments.plain:
            files.append(Path(folder) / "trace.json.gz")
            with plain.open("rb") as source, gzip.open(files[1], "wb", compresslevel=1) as target:
                while chunk := source.read(1 << 20):
                    target.write(chunk)
        for path in files:
            said = json.loads(
                subprocess.run(
                    [sys.executable, __file__, str(path), "--child"], check=True, stdout=subprocess.PIPE
                ).stdout
            )
            rate = megabytes / said["seconds"]
            bad |= rate < LEAST_MB_PER_S or said["peak_mb"] > MOST_MB * max(1.0, megabytes / 1000)
            print(
                f"{path.name}: {megabytes:,.0f} MB, {said['events']:,} events kept; {rate:.1f} MB/s in all, "
                f"{megabytes / said['read_seconds']:.1f} MB/s reading; {said['peak_mb']:,.0f} MB at most, of which "
                f"{said['start_mb']:,.0f} MB before the file was opened"
            )
    text = original(arguments.trace)
    load = time.process_time()
    json.loads(text)
    print(f"json.loads of the original: {len(text) / 1e6 / (time.process_time() - load):.1f} MB/s")
    return 1 if bad else 0


def child(path: Path) -> int:
    start_mb = peak_mb()
    began = time.process_time()
    trace = read_torch_trace(path)
    read = time.process_time()
    analyze_parsed_trace(trace)
    done = time.process_time()
    events = len(trace.operators) + len(trace.calls) + len(trace.activities) + len(trace.frames)
    said = {"seconds": done - began, "read_seconds": read - began, "events": events}
    print(json.dumps({**said, "start_mb": start_mb, "peak_mb": peak_mb()}))
    return 0


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def original(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8", "replace")


def write(source: Path, target: Path, size: int) -> None:
    """Repeat the events of `source` until `target` has `size` bytes."""
    loaded = json.loads(original(source), strict=False)
    events = loaded.pop("traceEvents")
    times = [event["ts"] for event in events if isinstance(event.get("ts"), int | float)]
    apart = max(times) - min(times) + 1_000_000
    written = 0
    with target.open("w", encoding="utf-8") as file:
        file.write(json.dumps(loaded)[:-1] + (", " if loaded else "") + '"traceEvents": [\n')
        repeat = 0
        while written < size:
            for line in shifted(events, repeat, apart):
                written += file.write(line if not written else f",\n{line}")
            repeat += 1
        file.write("\n]}\n")


def shifted(events: list[dict[str, Any]], repeat: int, apart: float) -> Iterator[str]:
    """The events of one repetition, as torch lays them out."""
    for event in events:
        moved = dict(event)
        if isinstance(moved.get("ts"), int | float):
            moved["ts"] += repeat * apart
        if isinstance(moved.get("ts"), float):
            moved["ts"] = round(moved["ts"], 3)
        arguments = dict(moved.pop("args", {}))
        for key in _IDS:
            if isinstance(arguments.get(key), int):
                arguments[key] += repeat * _IDS_APART
        inner = json.dumps(moved)[1:-1]
        yield f'  {{\n    {inner},\n    "args": {{\n      {json.dumps(arguments)[1:-1]}\n    }}\n  }}'


if __name__ == "__main__":
    sys.exit(main())

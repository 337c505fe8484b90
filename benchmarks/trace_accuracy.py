"""Figures of `frx analyze TRACE` beside those of a slow and simple computation that shares no code with it.

    python benchmarks/trace_accuracy.py FOLDER

reads every `*.json` and `*.json.gz` in the folder with `json.load`, cuts time at every beginning and end of an event to
add up the pieces that are covered, and finds the operator of a kernel by walking back through the operators of the
thread that launched it. Which steps count is taken from the report. Exit code 1 if a figure differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from frx_graph.analyze.trace import analyze_run
from frx_graph.reports.runs.trace_document import TraceResult, build_trace_document

Span = tuple[int, int]
WAITS = {
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
    *("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipMemcpy", "hipMemcpyWithStream"),
}
DEVICE = {
    "kernel": "kernel",
    "memcpy": "memcpy",
    "gpu_memcpy": "memcpy",
    "memset": "memset",
    "gpu_memset": "memset",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    paths = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    wrong = 0
    for path in paths:
        evidence = analyze_run(path)
        result = build_trace_document(evidence.trace, evidence.run, evidence.findings, Path.cwd()).result
        naive = Naive(path, [step.number for step in result.window.steps])
        print(f"\n{path.name}")
        for name, ours, theirs in figures(result, naive):
            same = agree(ours, theirs)
            wrong += not same
            print(f"  {name:<44} {shown(ours):>14} {shown(theirs):>14}  {'' if same else 'DIFFERS'}")
    print(f"\n{len(paths)} traces, {wrong} figures differ")
    return 1 if wrong or not paths else 0


def figures(result: TraceResult, naive: Naive) -> Iterator[tuple[str, float | None, float | None]]:
    """Name, the report's figure, the simple one."""
    yield "window, ms", result.window.span_ms, naive.ms(naive.window)
    for device in result.devices:
        mine = naive.on(device.device)
        for kind, ours in (
            ("kernel", device.kernel_busy_ms),
            ("memcpy", device.memcpy_busy_ms),
            ("memset", device.memset_busy_ms),
        ):
            theirs = naive.ms([(start, end) for what, start, end in mine if what == kind])
            yield f"device {device.device}: {kind} busy, ms", ours, theirs
        yield f"device {device.device}: busy, ms", device.busy_ms, naive.ms([(s, e) for _, s, e in mine])
    host = result.host
    yield "waiting for the DataLoader, ms", host.dataloader_wait_ms, naive.loading()
    yield "waiting for devices, ms", host.sync_wait_ms, naive.waiting()
    durations = [event["ns"][1] - event["ns"][0] for event in naive.kernels]
    launches = result.launches
    yield "kernels", float(result.attribution.kernels), float(len(durations))
    if launches is not None:
        yield "median kernel, us", launches.median_cuda_kernel_duration_us, statistics.median(durations) / 1e3
        small = sum(duration < 10_000 for duration in durations) / len(durations)
        yield "kernels below 10 us, of all", launches.small_kernel_fraction, small
    by_kernel: dict[str, int] = defaultdict(int)
    by_operator: dict[str, int] = defaultdict(int)
    for event, duration in zip(naive.kernels, durations, strict=True):
        by_kernel[event["name"]] += duration
        operator = naive.operator_of(event)
        if operator is not None:
            by_operator[operator] += duration
    ours_by_operator: dict[str, float] = defaultdict(float)
    for found in result.operators:
        ours_by_operator[found.inner] += found.total_ms
    ours_by_kernel = {kernel.name: kernel.total_ms for kernel in result.kernels}
    yield "kernel names", float(len(ours_by_kernel)), float(len(by_kernel))
    for name, time in sorted(by_kernel.items(), key=lambda item: -item[1])[:3]:
        yield f"{name[:38]}, ms", ours_by_kernel.get(name), time / 1e6
    yield "kernel names with another time", 0.0, float(differing(ours_by_kernel, by_kernel))
    yield "operators with kernels", float(len(ours_by_operator)), float(len(by_operator))
    for name, time in sorted(by_operator.items(), key=lambda item: -item[1])[:3]:
        yield f"{name[:38]}, ms", ours_by_operator.get(name), time / 1e6
    yield "operators with another time", 0.0, float(differing(ours_by_operator, by_operator))
    for transfer in result.transfers:
        same = [event for event in naive.copies if (transfer.direction or "") in event["name"]]
        if transfer.host_memory is not None:
            same = [event for event in same if transfer.host_memory in event["name"].lower()]
        yield f"{transfer.direction} {transfer.host_memory or ''} copies", float(transfer.count), float(len(same))
        yield "  ms", transfer.total_ms, sum(event["ns"][1] - event["ns"][0] for event in same) / 1e6
        sizes = [naive.size(event) for event in same]
        known = None if None in sizes else float(sum(size for size in sizes if size is not None))
        yield "  bytes", transfer.bytes, known


class Naive:
    """A trace, read the simple way. `steps` are the numbers of the steps that count; empty: all of the trace does."""

    def __init__(self, path: Path, steps: list[int]) -> None:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            loaded = json.load(file, parse_float=Decimal, strict=False)
        events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
        self.events = [event for event in events if event.get("ph") == "X" and event.get("cat") and self.timed(event)]
        for event in self.events:
            start = int(Decimal(event["ts"]) * 1000)
            event["ns"] = (start, start + int(Decimal(event["dur"]) * 1000))
            event["cat"] = event["cat"].lower()
        self.calls = [event for event in self.events if event["cat"].endswith(("runtime", "driver"))]
        self.by_correlation = {event.get("args", {}).get("correlation"): event for event in self.calls}
        self.operators = [e for e in self.events if e["cat"] in ("cpu_op", "operator", "user_annotation")]
        self.threads: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for event in sorted(self.operators, key=lambda e: (e["ns"][0], -e["ns"][1])):
            self.threads[str(event["pid"]), str(event["tid"])].append(event)
        activities = [event for event in self.events if event["cat"] in DEVICE]
        names = {f"ProfilerStep#{number}" for number in steps}
        self.host_window = [e["ns"] for e in self.operators if e["name"] in names]
        if not steps:
            all_events = [e["ns"] for e in (*self.operators, *self.calls, *activities)]
            self.host_window = [(min(start for start, _ in all_events), max(end for _, end in all_events))]
        self.inside = [event for event in activities if not steps or self.in_steps(self.launched_at(event))]
        last = max(self.host_window)
        end = max([last[1], *(event["ns"][1] for event in self.inside)])
        self.window = [*self.host_window, (last[0], end)]
        self.activities = activities
        self.kernels = [event for event in self.inside if DEVICE[event["cat"]] == "kernel"]
        self.copies = [event for event in self.inside if DEVICE[event["cat"]] == "memcpy"]

    @staticmethod
    def timed(event: dict[str, Any]) -> bool:
        return isinstance(event.get("ts"), int | Decimal) and isinstance(event.get("dur"), int | Decimal)

    def launched_at(self, event: dict[str, Any]) -> int:
        call = self.by_correlation.get(event["args"].get("correlation"))
        start: int = (event if call is None else call)["ns"][0]
        return start

    def in_steps(self, moment: int) -> bool:
        return any(start <= moment < end for start, end in self.host_window)

    def on(self, device: int | None) -> list[tuple[str, int, int]]:
        return [
            (DEVICE[event["cat"]], *event["ns"]) for event in self.activities if event["args"].get("device") == device
        ]

    def ms(self, spans: Iterable[Span], window: list[Span] | None = None) -> float:
        return covered(list(spans), self.window if window is None else window) / 1e6

    def loading(self) -> float | None:
        spans = [e["ns"] for e in self.operators if re.search(r"DataLoader.*__next__", e["name"])]
        return self.ms(spans, self.host_window) if spans else None

    def waiting(self) -> float | None:
        if not self.calls:
            return None
        return self.ms([e["ns"] for e in self.calls if e["name"] in WAITS], self.host_window)

    def operator_of(self, kernel: dict[str, Any]) -> str | None:
        """The innermost operator that was running where and when the kernel was launched."""
        call = self.by_correlation.get(kernel["args"].get("correlation"))
        if call is None:
            return None
        thread = self.threads[str(call["pid"]), str(call["tid"])]
        moment = call["ns"][0]
        around = [
            thread[index]
            for index in range(bisect_right(thread, moment, key=lambda e: e["ns"][0]) - 1, -1, -1)
            if thread[index]["ns"][1] >= moment and thread[index]["cat"] != "user_annotation"
        ]
        called = [event["name"] for event in around if "#" not in event["name"]]
        dispatched = [name for name in called if re.fullmatch(r"[a-z_]+\w*(::\w+)+(\.\w+)?", name)]
        return next(iter(dispatched or called), None)

    def size(self, event: dict[str, Any]) -> int | None:
        if "bytes" in event["args"]:
            return int(event["args"]["bytes"])
        call = self.by_correlation.get(event["args"].get("correlation"), {"args": {}})
        return int(call["args"]["size"]) if "size" in call["args"] else None


def covered(spans: list[Span], window: list[Span]) -> int:
    """Nanoseconds that a span covers within the window: time is cut at every end of a span, and each piece asked."""
    changes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for kind, group in enumerate((spans, window)):
        for start, end in group:
            if end > start:
                changes[start][kind] += 1
                changes[end][kind] -= 1
    total, running, looked_at, before = 0, 0, 0, 0
    for moment in sorted(changes):
        if running > 0 and looked_at > 0:
            total += moment - before
        running += changes[moment][0]
        looked_at += changes[moment][1]
        before = moment
    return total


def differing(ours_ms: dict[str, float], theirs_ns: dict[str, int]) -> int:
    names = {*ours_ms, *theirs_ns}
    return sum(not agree(ours_ms.get(name), theirs_ns.get(name, 0) / 1e6) for name in names)


def agree(ours: float | None, theirs: float | None) -> bool:
    """Equal but for the last digits of a float."""
    if ours is None or theirs is None:
        return ours is theirs
    return abs(ours - theirs) <= 1e-9 * max(1.0, abs(ours), abs(theirs))


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


if __name__ == "__main__":
    sys.exit(main())

"""Load on a service on loopback: 64 uploads of real files at once for a minute, a body without end, 500 slow clients.

    python benchmarks/serve_load.py [--seconds 60] [--clients 64] [--workers N] [--json FILE]

Each client sends one file after another and compares what comes back with what the analysis says in this process; who
is told to come back later does. Prints latencies, how many answers were lost or wrong, and the peak of the service's
memory with its workers; then how long a body without end is read until it is cut off, and how long an upload takes
while so many clients send next to nothing. Exit code 1: an answer was lost or wrong, memory was over its bound, or a
bound of time was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from tabulate import tabulate

from frx_graph.reports.render.document import to_json
from frx_graph.service.analysis import run_analysis
from frx_graph.service.analysis_job import AnalysisJob, JobFile, Task

DATA = Path(__file__).parents[1] / "tests" / "data"
FILES = (
    "traces/hta_alexnet_one_forward.json.gz",
    "traces/kineto_resnet50_two_steps.pt.trace.json.gz",
    "ptx/kernels_sm80.ptx",
    "cuda/uncoalesced_access_bad.cu",
    "cuda/shared_memory_without_barrier_bad.cu",
)
SLOW_CLIENTS = 500
ENDLESS_BYTES = 10_000_000_000
CUT_SECONDS = 1.0
MOST_MEMORY = 4 << 30
START_SECONDS = 120.0
UPLOAD_LIMIT_MB = 64


def expected() -> dict[str, Any]:
    """What the analysis of each file says, by its name."""
    found = {}
    for name in FILES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(name).name
            path.write_bytes((DATA / name).read_bytes())
            before = Path.cwd()
            os.chdir(folder)
            job = AnalysisJob(task=Task.FILE, folder=folder, files=(JobFile(name=path.name),))
            found[name] = json.loads(json.dumps(to_json(run_analysis(job))))
            os.chdir(before)
    return found


@contextmanager
def service(workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """A service on a free port, and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "frx_graph", "serve", "--port", "0", "--workers", str(workers),
         "--max-upload-mb", str(UPLOAD_LIMIT_MB)],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        found = re.search(r"serving at (http://[^;,]+)", process.stderr.readline())
        assert found is not None
        threading.Thread(target=collections.deque, args=(process.stderr,), kwargs={"maxlen": 0}, daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                httpx.get(f"{found[1]}/healthz", timeout=5)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield found[1], psutil.Process(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


class MemoryWatch:
    """The peak of a process' resident memory, with all that descend from it."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            used = 0
            for each in (self._process, *self._process.children(recursive=True)):
                try:
                    used += each.memory_info().rss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, used)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


async def load(url: str, clients: int, seconds: float, wanted: dict[str, Any]) -> dict[str, Any]:
    """So many clients for so long."""
    latencies: list[float] = []
    counts: collections.Counter[str] = collections.Counter()
    begin = time.monotonic()
    deadline = begin + seconds
    contents = {name: (DATA / name).read_bytes() for name in FILES}

    async def one(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            turn = number
            while time.monotonic() < deadline:
                name = FILES[turn % len(FILES)]
                turn += 1
                start = time.perf_counter()
                try:
                    answer = await client.post("/analyze", files={"file": (Path(name).name, contents[name])})
                    while answer.status_code == 503:
                        counts["told to come back"] += 1
                        await asyncio.sleep(float(answer.headers["retry-after"]))
                        answer = await client.post("/analyze", files={"file": (Path(name).name, contents[name])})
                except httpx.HTTPError as error:
                    counts["lost"] += 1
                    print(f"lost: {name}: {error!r}", file=sys.stderr)
                    continue
                latencies.append(time.perf_counter() - start)
                right = answer.status_code == 200 and answer.json() == wanted[name]
                counts["right" if right else "wrong"] += 1
                if not right:
                    print(f"wrong: {name}: {answer.status_code} {answer.text[:300]}", file=sys.stderr)

    await asyncio.gather(*(one(number) for number in range(clients)))
    took = time.monotonic() - begin
    hundredths = statistics.quantiles(latencies, n=100)
    return {
        "answers": len(latencies),
        "right": counts["right"],
        "wrong": counts["wrong"],
        "lost": counts["lost"],
        "told_to_come_back": counts["told to come back"],
        "per_second": len(latencies) / took,
        "p50_s": hundredths[49],
        "p99_s": hundredths[98],
    }


async def endless(url: str) -> dict[str, float]:
    """A chunked body of 10 GB: how long it is read, and how much of it, until it is cut off; from where it becomes too
    long."""
    sent, too_long_at = 0, None
    limit = UPLOAD_LIMIT_MB << 20
    part = b"x" * (1 << 20)

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent, too_long_at
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n\r\n'
        while sent < ENDLESS_BYTES:
            if sent > limit and too_long_at is None:
                too_long_at = time.perf_counter()
            sent += len(part)
            yield part

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    status = 0
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        try:
            status = (await client.post("/analyze", content=body(), headers=headers)).status_code
        except httpx.TransportError:
            status = 413  # the connection was closed while this client still wrote
    end = time.perf_counter()
    return {"status": status, "sent_bytes": sent, "cut_s": end - (too_long_at or end)}


async def slow(url: str) -> dict[str, float]:
    """How long a small upload takes alone, and beside clients that send a byte a second."""
    content = (DATA / "ptx" / "kernels_sm80.ptx").read_bytes()

    async def upload() -> float:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            start = time.perf_counter()
            answer = await client.post("/analyze", files={"file": ("k.ptx", content)})
            assert answer.status_code == 200
            return time.perf_counter() - start

    alone = [await upload() for _ in range(10)]
    address = httpx.URL(url)
    over = asyncio.Event()

    async def crawl() -> None:
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"POST /ptx/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 100000\r\n\r\n{")
        while not over.is_set():
            writer.write(b" ")
            await asyncio.sleep(1.0)
        writer.close()

    crawling = [asyncio.create_task(crawl()) for _ in range(SLOW_CLIENTS)]
    await asyncio.sleep(2.0)
    beside = [await upload() for _ in range(10)]
    over.set()
    await asyncio.gather(*crawling, return_exceptions=True)
    return {"alone_s": statistics.median(alone), "beside_s": statistics.median(beside), "slowest_beside_s": max(beside)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = expected()
    with service(options.workers) as (url, process):
        watch = MemoryWatch(process)
        try:
            under_load = asyncio.run(load(url, options.clients, options.seconds, wanted))
            cut = asyncio.run(endless(url))
            crawled = asyncio.run(slow(url))
        finally:
            watch.close()
    found = {
        "clients": options.clients,
        "workers": options.workers,
        "seconds": options.seconds,
        "load": under_load,
        "endless_body": cut,
        "slow_clients": {"clients": SLOW_CLIENTS, **crawled},
        "peak_bytes": watch.peak,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    rows = [(part, *item) for part in ("load", "endless_body", "slow_clients") for item in found[part].items()]
    print(tabulate([*rows, ("memory", "peak_bytes", watch.peak)], floatfmt=".4g"))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    broken = [
        message
        for message, holds in (
            ("answers were lost", under_load["lost"] == 0),
            ("answers were wrong", under_load["wrong"] == 0),
            ("memory was over its bound", watch.peak <= MOST_MEMORY),
            ("a body without end was not refused", cut["status"] == 413),
            ("a body without end was read for too long", cut["cut_s"] <= CUT_SECONDS),
        )
        if not holds
    ]
    print("; ".join(broken) or "all bounds hold")
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())

"""A real service with worker processes of its own, and applications whose analyses are told beforehand."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
import uvicorn

from frx_graph.advice import Advice
from frx_graph.cli.serve import open_listening_socket
from frx_graph.ledger.location import Location
from frx_graph.service.app import create_app
from frx_graph.service.http.connection import make_server
from frx_graph.service.settings import ServiceSettings

START_SECONDS = 180.0


_REPORTS = runpy.run_path(str(Path(__file__).parents[1] / "reports" / "conftest.py"))
"""Hand-made advice stands there."""


_LEDGER = runpy.run_path(str(Path(__file__).parents[1] / "ledger" / "conftest.py"))
decide = _LEDGER["decide"]


@pytest.fixture
def advice() -> Advice:
    return _REPORTS["sample_advice"]()


@pytest.fixture
def hostile_advice() -> Advice:
    return _REPORTS["hostile_advice"]()


class Running:
    """A service that was started as people start it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.log: list[str] = []
        assert process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        self.log += iter(stream.readline, "")


@contextmanager
def started(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Running]:
    """`frx serve` on a free port, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "frx_graph", "serve", "--port", "0", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"serving at (http://\S+?)[,;]", line)
        assert found is not None, line + process.stderr.read()
        wait_until_healthy(found[1])
        yield Running(process, found[1])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            assert httpx.get(f"{url}/healthz", timeout=10).status_code == 200
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(scope="session")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service") / "ledger.sqlite3"


@pytest.fixture(scope="session")
def service(ledger_file: Path) -> Iterator[Running]:
    """With one worker, and time enough for it beside other tests."""
    with started("--workers", "1", "--time-limit-s", "300", "--ledger", str(ledger_file)) as running:
        yield running


@pytest.fixture(scope="session")
def client(service: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=120) as opened:
        yield opened


@pytest.fixture
def stop_all() -> Iterator[Callable[[], None]]:
    """Stops what `served` has started, as a signal does."""
    running = _RUNNING.copy()
    yield lambda: _stop(running)


_RUNNING: list[tuple[uvicorn.Server, threading.Thread]] = []


def _stop(running: list[tuple[uvicorn.Server, threading.Thread]]) -> None:
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a service in this process, under settings of the test's own, and gives its address."""

    def start(*, log: Callable[[str], None] = lambda _line: None, **settings: object) -> str:
        found = ServiceSettings.model_validate({"workers": 1, "shutdown_seconds": 5, **settings})
        server = make_server(create_app(found, Location(tmp_path / "ledger.sqlite3"), log), found)
        socket = open_listening_socket("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
        thread.start()
        _RUNNING.append((server, thread))
        url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        wait_until_healthy(url)
        return url

    yield start
    _stop(_RUNNING)
    _RUNNING.clear()

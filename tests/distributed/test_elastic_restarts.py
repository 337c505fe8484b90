"""Ranks that `torchrun` starts anew agree anew.

The store that it shares with its ranks by default is not made anew, and then gloo connects to addresses of before; so
it is told not to share (pytorch/pytorch#135712). What ranks do that find an older store is in `test_agreement.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist

SCRIPT = Path(__file__).with_name("elastic_rank.py")
LIMIT = 180.0

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed"),
]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `torchrun` in a process group of its own; what it and its ranks say is in `output`."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }

    def start(*arguments: str, last: int) -> subprocess.Popen[bytes]:
        with (tmp_path / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *arguments, str(SCRIPT), str(tmp_path), str(last)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    print((tmp_path / "output").read_text(errors="replace"))


def seen(folder: Path, life: int) -> list[Any]:
    """What the two ranks saw in a life."""
    return [json.loads((folder / f"{life}.{rank}.json").read_text()) for rank in range(2)]


def agreed(life: int) -> list[str]:
    return [f"plan of life {life}"] * 2


def test_after_a_restart_all_agree_on_what_is_offered_now(
    launch: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = launch("--standalone", "--nproc-per-node=2", "--max-restarts=2", last=2)
    assert process.wait(LIMIT) == 0
    assert [rank["plan"] for rank in seen(tmp_path, 0)] == agreed(0)
    assert not list(tmp_path.glob("1.*.json"))
    assert [rank["plan"] for rank in seen(tmp_path, 2)] == agreed(2)


def test_a_machine_is_replaced(launch: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """The others' launchers go on, and count no restart of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (
        "--nnodes=2",
        "--nproc-per-node=1",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        "--rdzv-id=elastic",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--local-addr=127.0.0.1",
    )
    # Whoever of one machine comes first has the store of them all, and with it would be killed.
    timing = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1,is_host={}"
    (tmp_path / "machines").touch()
    first = launch(*arguments, timing.format("true"), last=1)
    machine = launch(*arguments, timing.format("false"), last=1)
    victim = tmp_path / "victim"
    wait_for(victim.exists)
    # Launchers give their ranks process groups of their own.
    os.killpg(machine.pid, signal.SIGKILL)
    (tmp_path / "0.over").touch()
    os.kill(int(victim.read_text()), signal.SIGKILL)
    other = launch(*arguments, timing.format("false"), last=1)
    assert (first.wait(LIMIT), other.wait(LIMIT)) == (0, 0)
    assert [rank["plan"] for rank in seen(tmp_path, 0)] == agreed(0)
    assert [rank["plan"] for rank in seen(tmp_path, 1)] == agreed(1)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

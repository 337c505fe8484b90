"""Run attempts on a Ray cluster. Only this module imports Ray, and only on request.

A place is a placement group of one bundle, pinned to its node. It holds all resources that a trial uses exclusively,
including the node's `node:<ip>` resource, which Ray gives each node once. Attempts are tasks in it, which Ray never
retries.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from frx_graph.engines.attempt import Answer, Ending, Task, run_attempt
from frx_graph.engines.cluster import Node, Reservation, Running, Share
from frx_graph.errors import OptionError, summarize_error
from frx_graph.support.plain_text import clean_line

_CANCELLING_SECONDS = 20.0
"""Seconds that attempts get to end their arms, before their workers are killed together with the arms."""
_KILLING_SECONDS = 10.0
_CONNECTING_SECONDS = 10.0
_LOCAL = "local"
"""Ray's address for a new cluster on this machine."""


@contextlib.contextmanager
def connect_ray(address: str | None, working_dir: Path | None = None) -> Iterator[RayCluster]:
    """Connect to the cluster at `address`, else `RAY_ADDRESS`, else a new one of this machine that ends with the block,
    and send it `working_dir`. Raises `OptionError` without Ray or such a cluster."""
    # Before the import, which reads them: nothing is sent to anybody, in no cluster that is begun here.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address = address or os.environ.get("RAY_ADDRESS") or _LOCAL
    if address == _LOCAL:
        # Ray documents this for other systems, but does it here, too: it listens on the loopback interface only. Asked
        # for 127.0.0.1 it takes the machine's address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name
    try:
        import ray
    except ImportError as error:
        raise OptionError(f"--engine ray: {summarize_error(error)}", "pip install 'frx-graph[ray]'") from error
    if ray.is_initialized():
        raise OptionError("--engine ray: this process is connected to a Ray cluster already", "ray.shutdown() first")
    # Ray prints its messages to standard output, where documents go.
    with contextlib.redirect_stdout(io.StringIO()):
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _connect(ray, address, working_dir)
        except (ConnectionError, OSError, ValueError, RuntimeError, ImportError) as error:
            raise OptionError(
                f"Ray at {address}: {summarize_error(error)}", "ray start --head begins a cluster"
            ) from error
        finally:
            # Ray replaces it, where a thread may.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
        try:
            yield RayCluster(ray)
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str, working_dir: Path | None) -> None:
    environment = {} if working_dir is None else {"working_dir": str(working_dir.absolute())}
    quiet = {"log_to_driver": False, "logging_level": "CRITICAL", "runtime_env": environment}
    if address == _LOCAL:
        ray.init(address=address, include_dashboard=False, **quiet)
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        # Ray itself tries for minutes to reach a missing cluster.
        socket.create_connection((host.strip("[]"), int(port)), _CONNECTING_SECONDS).close()
    ray.init(address=address, **quiet)


class RayCluster:
    """A `Cluster`. `ray` is the module, connected."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        # No crash is hidden by another try, and what others call that exits is a crash.
        self._attempt = ray.remote(max_retries=0, retry_exceptions=False)(run_attempt)
        self.working_dir = "working_dir" in dict(ray.get_runtime_context().runtime_env)
        """True if Ray sends the user's folder to the nodes."""

    def list_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that are alive."""
        alive = [(one, one["Resources"]) for one in self.ray.nodes() if one["Alive"]]
        return tuple(
            Node(one["NodeID"], one["NodeManagerAddress"], has.get("CPU", 0.0), has.get("GPU", 0.0))
            for one, has in alive
        )

    def reserve(self, node: Node, share: Share) -> Reservation:
        """Ask for a share of this node, and of no other."""
        wanted = {"CPU": share.cpus, "GPU": share.gpus, f"node:{node.address}": share.slot}
        group = self.ray.util.placement_group(
            [{name: amount for name, amount in wanted.items() if amount}],
            bundle_label_selector=[{"ray.io/node-id": node.id}],
        )
        return Reservation(node, share, (group, group.ready()))

    def start(self, reservation: Reservation, task: Task) -> Running:
        """Start a task in its reservation."""
        group, _ = reservation.handle
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        handle = self._attempt.options(
            num_cpus=reservation.share.cpus,
            num_gpus=reservation.share.gpus,
            scheduling_strategy=strategy,
            name=f"frx attempt {task.attempt}",
        ).remote(task)
        return Running(reservation, handle, task.attempt)

    def wait(
        self, reservations: Collection[Reservation], running: Collection[Running], seconds: float
    ) -> tuple[tuple[Reservation, ...], tuple[Running, ...]]:
        """Return the reservations that were granted and the tasks that have ended."""
        ready = {reservation.handle[1]: reservation for reservation in reservations}
        tasks = {one.handle: one for one in running}
        if not ready and not tasks:
            time.sleep(seconds)
            return (), ()
        done, _ = self.ray.wait([*ready, *tasks], timeout=seconds, fetch_local=False)
        return tuple(ready[ref] for ref in done if ref in ready), tuple(tasks[ref] for ref in done if ref in tasks)

    def get_answer(self, running: Running) -> Answer:
        """Return the answer of a task that has ended."""
        errors = self.ray.exceptions
        try:
            found = self.ray.get(running.handle)
        except errors.RuntimeEnvSetupError as error:
            # The node's disk may be full, or a server unreachable from it: others may do better.
            text = f"it cannot be set up: {clean_line(str(error), 400)}"
            return Answer(running.attempt, Ending.UNFIT, text, "see --working-dir")
        except errors.TaskCancelledError:
            return Answer(running.attempt, Ending.LOST, "it was cancelled")
        except errors.RayTaskError as error:
            # The node has no frx-graph, or may not start a process: what passes is an answer and no error.
            text = f"it cannot run it: {summarize_error(error.cause or error)}"
            return Answer(running.attempt, Ending.UNFIT, text, "install frx-graph on all nodes")
        except errors.RayError as error:
            return Answer(running.attempt, Ending.LOST, summarize_error(error))
        assert isinstance(found, Answer)
        return found

    def cancel(self, running: Collection[Running]) -> None:
        """Raise an exception in each attempt, which ends its processes; kill attempts that do not react."""
        left: Sequence[Any] = [one.handle for one in running]
        for force, seconds in ((False, _CANCELLING_SECONDS), (True, _KILLING_SECONDS)):
            for handle in left:
                self.ray.cancel(handle, force=force)
            if left:
                _, left = self.ray.wait(left, num_returns=len(left), timeout=seconds, fetch_local=False)

    def release(self, reservation: Reservation) -> None:
        """Give back a share, or no longer ask for it."""
        self.ray.util.remove_placement_group(reservation.handle[0])

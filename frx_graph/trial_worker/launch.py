"""Start the arms of trials: fresh processes that run this package, installed or not.

To import this module takes no torch: the process that arms are forked from can import it while this one does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from frx_graph.measure.machine.control_groups import get_available_memory
from frx_graph.support.supervisor.fork_server import ForkServer
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trials.arm_process import ArmError, ArmProcess, Cause, Limits

MEMORY_SHARE = 0.8
"""Share of the available memory that an arm may use. The second arm of a pair gets the same limits as the first."""
_READ_AT_USE = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
"""Variables that torch reads whenever it uses them, and sets if they are missing: arms can be given them later."""
_COMMAND = (sys.executable, "-m", "frx_graph.trial_worker")


def start_arm(limits: Limits | None = None, *, environment: Mapping[str, str] | None = None) -> ArmProcess:
    """Start `python -m frx_graph.trial_worker`, with `environment` added to this process's own; by default it may use
    `MEMORY_SHARE`. Raises `ArmError`."""
    added = {**(environment or {}), **extend_pythonpath()}
    return ArmProcess(_COMMAND, limits=limits or _make_limits(), environment=added)


def _make_limits() -> Limits:
    available = get_available_memory()
    return Limits() if available is None else Limits(memory_bytes=int(MEMORY_SHARE * available))


class WarmArms(contextlib.AbstractContextManager["WarmArms"]):
    """Starts arms by forking them from a process that has imported torch, which saves each some seconds; a context
    manager that ends that process. Where there may be a GPU, whose driver does not survive a fork, or if it cannot
    fork, arms are started one by one."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._started_in: tuple[str, dict[str, str]] | None = None
        # Some builds of Python lack pidfd_open.
        self._forks = sys.platform == "linux" and hasattr(os, "pidfd_open")

    def __exit__(self, *_: object) -> None:
        self._close()

    def prepare(self) -> None:
        """Start the process that arms are forked from, if there can be one, without waiting for its imports."""
        if self._forks:
            with contextlib.suppress(OSError):
                self._get_server()

    def start(self, limits: Limits | None = None) -> ArmProcess:
        """Start an arm, like `start_arm`."""
        self._forks = self._forks and not _has_gpu()
        if not self._forks:
            self._close()
            return start_arm(limits)
        try:
            late = {name: os.environ[name] for name in _READ_AT_USE if name in os.environ}
            return ArmProcess(self._get_server(), limits=limits or _make_limits(), environment=late)
        except (ArmError, OSError) as error:
            if isinstance(error, ArmError) and error.cause is not Cause.NOT_STARTED:
                raise
            self._forks = False
            self._close()
            return start_arm(limits)

    def _get_server(self) -> ForkServer:
        """Return a server with the environment and the folder of this moment, which arms inherit."""
        here = (str(Path.cwd()), {name: value for name, value in os.environ.items() if name not in _READ_AT_USE})
        if self._server is None or self._started_in != here:
            self._close()
            command = (*_COMMAND, str(os.getpid()))
            self._server, self._started_in = ForkServer(command, {**os.environ, **extend_pythonpath()}), here
        return self._server

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


_SHARED: ContextVar[WarmArms | None] = ContextVar("frx_warm_arms", default=None)


@contextlib.contextmanager
def share_warm_arms() -> Iterator[None]:
    """Fork the arms of all trials inside from one process, which begins to import what they need at once."""
    with WarmArms() as arms:
        arms.prepare()
        token = _SHARED.set(arms)
        try:
            yield
        finally:
            _SHARED.reset(token)


@contextlib.contextmanager
def open_warm_arms() -> Iterator[WarmArms]:
    """Yield the arms that are shared here, else new ones."""
    if (shared := _SHARED.get()) is not None:
        yield shared
        return
    with WarmArms() as arms:
        yield arms

"""Fork processes from one that has imported everything they need, which would take each of them seconds.

The server is a fresh process with a single purpose. It imports modules, freezes its objects, and forks for each
request. A child leads its own session. The server ends with the process that started it, and children with the server.

A fork has its parent's address layout. With all processes alike, an effect of addresses would count for one in every
pair, so each child moves the heap and later mappings by a random number of pages, as the kernel does for a new program.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import random
import select
import socket
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from frx_graph.support.supervisor.forked_process import ForkedProcess
from frx_graph.support.supervisor.process import end_process, has_exited

_MESSAGE_BYTES = 2**20
_PATIENCE_SECONDS = 120.0
"""Longest wait for a process. The first has to wait for the imports."""
_POLL_MILLISECONDS = 50
_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_SHIFT_PAGES = 4096
"""Mappings and the heap are each moved by up to 16 MiB. The kernel moves them further, but by whole pages as well."""


class ForkServer:
    """Starts `command`, whose last argument will be a descriptor for `serve_forks`. Ends it when closed, or without
    references. Raises `OSError` if it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=dict(environment),
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        self._numbers = itertools.count()
        self._answers: dict[int, dict[str, Any]] = {}
        self._end = weakref.finalize(self, _end_server, os.getpid(), self._process, ours)

    def fork(self, descriptors: Sequence[int], variables: Mapping[str, str]) -> ForkedProcess:
        """Return a new process that has `descriptors` (its questions, its answers, its output), and `variables` in its
        environment. Raises `OSError`."""
        found = self._ask({"variables": dict(variables)}, descriptors)
        return ForkedProcess(int(found["pid"]), self._reap, lambda: not has_exited(self._process))

    def close(self) -> None:
        """End the server, and with it the processes that are left."""
        self._end()

    def _reap(self, pid: int) -> int:
        return int(self._ask({"reap": pid})["code"])

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Mapping[str, Any]:
        """Return the answer to a request. Another may come in between, as an arm without references is ended whenever
        Python collects it. After an interrupt nothing more is asked: the server ends, and its children with it."""
        number = next(self._numbers)
        try:
            socket.send_fds(self._socket, [json.dumps({**request, "number": number}).encode()], list(descriptors))
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while number not in self._answers:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the process that forks arms does not answer within {_PATIENCE_SECONDS:.0f} s")
                self._receive()
        except BaseException:
            self._socket.close()
            raise
        found = self._answers.pop(number)
        if "error" in found:
            raise OSError(found["error"])
        return found

    def _receive(self) -> None:
        """Keep the next answer, if one comes soon: another request may have taken it already."""
        comes = select.poll()
        comes.register(self._socket, select.POLLIN)
        if not comes.poll(_POLL_MILLISECONDS):
            return
        try:
            answer = self._socket.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        if not answer:
            raise ConnectionError("the process that forks arms has ended")
        found = json.loads(answer)
        self._answers[found["number"]] = found


def _end_server(owner: int, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    if os.getpid() == owner:
        end_process(process)


def serve_forks(descriptor: int) -> tuple[int, int] | None:
    """Answer requests until the other end is closed; then return None. In each child, return its descriptors for
    questions and answers. Call it in the only thread, when all imports are done."""
    connection = socket.socket(fileno=descriptor)
    _adopt_orphans()
    while True:
        received, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        if not received:
            return None
        request = json.loads(received)
        try:
            pid = os.fork() if "variables" in request else None
            if pid == 0:
                connection.close()
                return _become_child(descriptors, request["variables"])
            answer: dict[str, int | str] = {"code": _reap_child(request["reap"])} if pid is None else {"pid": pid}
        except OSError as error:
            answer = {"error": str(error)}
        for one in descriptors:
            os.close(one)
        connection.send(json.dumps({**answer, "number": request["number"]}).encode())


def _reap_child(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become_child(descriptors: Sequence[int], variables: Mapping[str, str]) -> tuple[int, int]:
    questions, answers, output = descriptors
    os.setsid()
    _adopt_orphans()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(variables)
    _shift_addresses()
    return questions, answers


def _adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs. Those of a fork cannot be found by their environment, since
    the kernel shows the one that the server was started with."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _shift_addresses() -> None:
    """Move the heap and later mappings by a random number of pages, which stay unused."""
    pages = random.SystemRandom()
    ctypes.CDLL(None).sbrk(ctypes.c_ssize_t(pages.randrange(_SHIFT_PAGES) * mmap.PAGESIZE))
    _KEPT.append(mmap.mmap(-1, (1 + pages.randrange(_SHIFT_PAGES)) * mmap.PAGESIZE))


_KEPT: list[mmap.mmap] = []

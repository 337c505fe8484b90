"""Connect an arm to the pipes to its parent: see `frx_graph.trials.arm_process`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from frx_graph.support.supervisor.supervised import end_with_parent

PIPES = "FRX_ARM_PIPES"
"""Environment variable with the read and write descriptors of the arm's side, and the id of the process that started
the arm."""


class ArmConnection:
    """The arm's side of the connection, which receives questions one by one until the trial is over."""

    def __init__(self, questions: BufferedReader, answers: BinaryIO) -> None:
        self._questions = questions
        self._answers = answers

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._questions:
            yield json.loads(line)

    def wait_for_question(self) -> bool:
        """Wait for a question; return False if there will be none."""
        return bool(self._questions.peek(1))

    def answer(self, message: Mapping[str, Any]) -> None:
        """Send the answer to the last question."""
        self._answers.write(json.dumps(message).encode() + b"\n")
        self._answers.flush()


def connect_to_parent() -> ArmConnection:
    """Return the connection of this process, which was started as an arm. It ends when its parent dies. Raises
    `RuntimeError` in any other process."""
    try:
        read, write, parent = map(int, os.environ.pop(PIPES).split())
    except KeyError:
        raise RuntimeError("this process is not an arm of a trial") from None
    return connect(read, write, parent)


def connect(read: int, write: int, parent: int) -> ArmConnection:
    """Return the connection of this process through the descriptors `read` and `write`. It ends when `parent` dies."""
    for descriptor in (read, write):
        # Child processes of the arm do not keep the connection open.
        os.set_inheritable(descriptor, False)
    end_with_parent(parent)
    # If memory runs out, the kernel ends this process and its children first. proc(5): from -1000, never, to 1000. It
    # fails on another system, or in a sandbox.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    return ArmConnection(os.fdopen(read, "rb"), os.fdopen(write, "wb"))

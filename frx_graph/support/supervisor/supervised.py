"""The side of the process that is supervised: whose life it shares, what it may use, and where its answers go."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Send this process the signal `number` when `parent`, which has started it, dies; end it at once if that has died.

    Elsewhere than on Linux only the latter.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        # It has gone already, and what it has asked for waits in the pipe.
        sys.exit("whoever has started this process has gone")


def limit_resources(most: Mapping[int, int]) -> None:
    """Let this process, and what it starts, use so much of each resource (`resource.RLIMIT_...`), and dump no core."""
    for limited, number in {**most, resource.RLIMIT_CORE: 0}.items():
        resource.setrlimit(limited, (number, number))


def claim_stdout() -> BinaryIO:
    """Return a stream to what was standard output; what anybody prints from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers

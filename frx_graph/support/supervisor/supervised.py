"""Set up a process that another one supervises: end with it, limit resources, reserve standard output."""

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
    """Send this process the signal `number` when `parent`, which started it, dies; exit now if it has died already.

    Other systems than Linux support only the exit.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        # Its request still waits in the pipe.
        sys.exit("the process that started this one has ended")


def limit_resources(most: Mapping[int, int]) -> None:
    """Limit each resource (`resource.RLIMIT_...`) of this process and its children; no core dumps."""
    for limited, number in {**most, resource.RLIMIT_CORE: 0}.items():
        resource.setrlimit(limited, (number, number))


def claim_stdout() -> BinaryIO:
    """Return a stream to standard output, and redirect prints from now on to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers

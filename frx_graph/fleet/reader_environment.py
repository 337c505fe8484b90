"""The environment variables of a process that reads runs: what Python and torch need, and no credentials.

A list of what it gets, and none of what it must not get: nobody knows all names that keys and passwords have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES: Final = frozenset(
    {
        # Where programs, libraries and temporary files are.
        "PATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "HOME",
        "XDG_CACHE_HOME",
        "TMPDIR",
        "TMP",
        "TEMP",
        # Who it is: torch names its cache after the user, whom a container may not have in its list.
        "USER",
        "LOGNAME",
        "USERNAME",
        "LANG",
        "LANGUAGE",
        "TZ",
        # Of CUDA, which torch looks for when it is imported.
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
    }
)
_BEGINNINGS: Final = ("LC_", "PYTHON", "TORCH_", "TORCHINDUCTOR_", "OMP_", "KMP_", "MKL_", "MALLOC_")


def reader_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Those of `ours` that it gets."""
    return {name: value for name, value in ours.items() if name in _NAMES or name.startswith(_BEGINNINGS)}

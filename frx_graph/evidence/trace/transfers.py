"""What a copy or fill on a device moved, and between which memories: told by its name."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_DIRECTIONS = (
    ("HtoD", re.compile(r"HtoD|HostTo(?:Device|Gpu)")),
    ("DtoH", re.compile(r"DtoH|(?:Device|Gpu)ToHost")),
    ("HtoH", re.compile(r"HtoH|HostToHost")),
    ("PtoP", re.compile(r"PtoP|PeerToPeer")),
    ("DtoD", re.compile(r"DtoD|DeviceToDevice")),
)
_MEMORIES = re.compile(r"\((?P<source>\w+) -> (?P<target>\w+)\)")
_KINDS = frozenset({"Pageable", "Pinned", "Managed"})


@dataclass(frozen=True, slots=True)
class Transfer:
    """`direction` is HtoD, DtoH, DtoD, PtoP, HtoH or, of a name that does not tell, None. `host_memory` is pageable,
    pinned or managed where the trace says so: ROCm's do not."""

    direction: str | None
    host_memory: str | None


@functools.lru_cache(maxsize=1024)
def transfer(name: str) -> Transfer:
    """From `Memcpy HtoD (Pageable -> Device)` or `CopyHostToDevice`."""
    direction = next((direction for direction, pattern in _DIRECTIONS if pattern.search(name)), None)
    memories = _MEMORIES.search(name)
    host = None
    if memories is not None:
        host = next((side.lower() for side in (memories["source"], memories["target"]) if side in _KINDS), None)
    return Transfer(direction, host)

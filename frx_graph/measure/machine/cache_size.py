"""Read the size of the processor's last cache."""

from __future__ import annotations

import contextlib
from pathlib import Path

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_last_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Return the bytes of the highest level of cache that the first processor has, or shares; None if unknown."""
    found: list[tuple[int, int]] = []
    for cache in sorted(folder.glob("index*")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            size = (cache / "size").read_text().strip()
            found.append((int((cache / "level").read_text()), int(size[:-1]) * _UNITS[size[-1]]))
    return max(found)[1] if found else None

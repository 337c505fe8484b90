"""Which C++ compiler Inductor finds: another one, or another version, makes other kernels of the same code."""

from __future__ import annotations

import shutil
from pathlib import Path

from frx_graph.support.torch_internals import inductor_config


def cpp_compiler() -> str | None:
    """The compiler's file as it is told from others without starting it: its name behind all links, its size, and when
    it was written, which packages keep from where they were built. None where there is none."""
    compilers = inductor_config.cpp.cxx
    names = compilers if isinstance(compilers, (tuple, list)) else (compilers,)
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if found is None:
        return None
    file = Path(found).resolve()
    status = file.stat()
    return f"{file.name}, {status.st_size} bytes, {int(status.st_mtime)}"

"""Which processor this is, as far as the system tells."""

from __future__ import annotations

import platform
import re
from pathlib import Path

_X86 = ("cpu family", "model", "stepping")
_ARM = ("CPU implementer", "CPU variant", "CPU part", "CPU revision")


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The marketing name and, in brackets, the numbers by which the makers tell their processors apart: virtual
    machines leave the generation out of the name ("AMD EPYC"), and ARM's have none. The machine architecture where
    nothing tells more.
    """
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    first = dict(re.findall(r"^(\w[^\t:\n]*?)[ \t]*:[ \t]*(.*?)[ \t]*$", text.split("\n\n")[0], re.MULTILINE))
    name = first.get("model name") or platform.processor() or platform.machine() or "cpu"
    numbers = [first[field] for field in (*_X86, *_ARM) if field in first]
    return f"{name} ({'.'.join(numbers)})" if numbers else name

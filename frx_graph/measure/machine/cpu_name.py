"""Which processor this is, as far as the system tells."""

from __future__ import annotations

import platform
import re
from pathlib import Path

_X86 = ("cpu family", "model", "stepping")
_ARM = ("CPU implementer", "CPU variant", "CPU part", "CPU revision")


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The marketing name and the numbers by which its maker tells processors apart (x86: family, model, stepping; ARM:
    implementer, variant, part, revision): virtual machines leave the generation out of the name ("AMD EPYC 25.17.1" is
    a Genoa), and ARM's have no name. The machine architecture where nothing tells more.
    """
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    first = dict(re.findall(r"^(\w[^\t:\n]*?)[ \t]*:[ \t]*(.*?)[ \t]*$", text.split("\n\n")[0], re.MULTILINE))
    name = first.get("model name") or platform.processor() or platform.machine() or "cpu"
    numbers = ".".join(first[field] for field in (*_X86, *_ARM) if field in first)
    return f"{name} {numbers}" if numbers else name

"""Whatever a file names, nothing else is opened, and nobody is asked over the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "/etc/hostname"
WATCH = """
import os, sys
from pathlib import Path
from frx_graph.service.analysis_job import AnalysisJob, JobFile
from frx_graph.service.worker import answer
folder, name = sys.argv[1:]
job = AnalysisJob(task="file", folder=folder, files=(JobFile(name=name),), form="html")
answer(job)  # what is imported, and read of the package, was read now
seen = []
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        seen.append(os.fsdecode(arguments[0]))
    if event.startswith(("socket.connect", "urllib", "subprocess", "os.system", "os.exec", "os.posix_spawn")):
        seen.append(f"{event} {arguments}")
sys.addaudithook(note)
print(answer(job).status)
inside = os.path.realpath(folder)
print([path for path in seen if not os.path.realpath(path).startswith(inside)])
"""


def trace() -> str:
    frame = f"{SECRET}(1): read"
    events = [
        {"ph": "X", "cat": "python_function", "name": frame, "pid": 1, "tid": 1, "ts": 0, "dur": 99, "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::contiguous", "pid": 1, "tid": 1, "ts": 1, "dur": 60,
         "args": {"Input Dims": [[8, 8]], "Input type": ["float"], "Call stack": frame}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 1, "tid": 1, "ts": 2, "dur": 50,
         "args": {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}},
    ]  # fmt: skip
    return json.dumps({"trace_id": f"file://{SECRET}", "traceEvents": events})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.json", trace()),
        ("k.cu", f'#include "{SECRET}"\n#include <{SECRET}>\n__global__ void k(float *a) {{ a[threadIdx.x] = 1; }}\n'),
        (
            "r.csv",
            '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            f'"0","{SECRET}","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","90"\n',
        ),
    ],
)
def test_only_what_was_sent_is_read(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path), name], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.splitlines() == ["done", "[]"]

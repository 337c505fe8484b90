"""Whatever a file names, nothing else is opened, and nobody is asked over the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frx_graph.advice import Advice
from frx_graph.reports.advice.advice_file import render_json

SECRET = "/etc/hostname"
WATCH = """
import os, sys
from pathlib import Path
from frx_graph.service.analysis_job import AnalysisJob, JobFile
from frx_graph.service.worker import answer_job
folder, name = sys.argv[1:]
job = AnalysisJob(task="file", folder=folder, files=(JobFile(name=name),), form="html")
# What is imported, and read of the package, is read now; of the file itself nothing is, which could be kept.
other = AnalysisJob(task="file", folder=os.path.join(folder, "other"), files=(JobFile(name=name),), form="html")
assert answer_job(other).status == "done"
opened, done = [], []
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append(os.fsdecode(arguments[0]))
    if event.startswith(("socket.", "urllib", "subprocess", "os.system", "os.exec", "os.posix_spawn")):
        done.append(f"{event} {arguments}")
sys.addaudithook(note)
print(answer_job(job).status)
inside = os.path.realpath(folder)
print([path for path in opened if not os.path.realpath(path).startswith(inside)], done)
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


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.json", trace()),
        ("k.cu", f'#include "{SECRET}"\n#include <{SECRET}>\n__global__ void k(float *a) {{ a[threadIdx.x] = 1; }}\n'),
        (
            "k.ptx",
            f'.version 7.0\n.target sm_80\n.address_size 64\n.file 1 "{SECRET}"\n.visible .entry k(.param .u64 p) {{\n'
            "  .reg .b64 %rd<2>;\n  .loc 1 1 0\n  ld.param.u64 %rd1, [p];\n  ret;\n}\n",
        ),
        (
            "r.csv",
            '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            f'"0","{SECRET}","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","90"\n',
        ),
    ],
)
def test_only_uploaded_content_is_read(tmp_path: Path, name: str, content: str):
    read(tmp_path, name, content)


def test_code_paths_in_advice_are_not_opened(tmp_path: Path, advice: Advice):
    def hostile(value: object) -> object:
        if isinstance(value, dict):
            return {key: SECRET if key == "file" else hostile(one) for key, one in value.items()}
        return [hostile(one) for one in value] if isinstance(value, list) else value

    content = json.dumps(hostile(json.loads(render_json(advice))))
    assert SECRET in content
    read(tmp_path, "advice.json", content)


def read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_text(content.replace(SECRET, "/nowhere"))
    # Without the assembler, which would be started with the file.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_HOME"} | {"PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path), name],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=environment,
    )
    assert done.stdout.splitlines() == ["done", "[] []"]

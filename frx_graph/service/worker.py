"""A worker process of the service: reads one job per line, and writes one answer per line.

    python -m frx_graph.service.worker MOST_BYTES MOST_SECONDS

MOST_BYTES limits its allocations once it is ready. A job that takes longer than MOST_SECONDS ends the process, even if
the service is gone. The process ends when its input ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import BinaryIO, Final

import psutil

from frx_graph.errors import FrxError, summarize_error
from frx_graph.reports.render.document import to_json
from frx_graph.service.analysis import run_analysis
from frx_graph.service.analysis_job import (
    READY,
    RESULT,
    TEMPORARY,
    AnalysisJob,
    Answer,
    Done,
    Failed,
    OutOfMemory,
    Refused,
    ResultForm,
)
from frx_graph.service.html_report import render_result
from frx_graph.support.supervisor.supervised import claim_stdout, limit_resources

_FRAMES: Final = 8


def answer_job(job: AnalysisJob) -> Answer:
    """Run the analysis, and write the result. Changes the working directory."""
    try:
        os.chdir(job.folder)
        # Also of child processes: a killed worker cannot remove them.
        tempfile.tempdir = os.environ["TMPDIR"] = str(Path(job.folder) / TEMPORARY)
        Path(tempfile.tempdir).mkdir(exist_ok=True)
        document = run_analysis(job)
        html = job.form is ResultForm.HTML
        text = render_result(document) if html else json.dumps(to_json(document), allow_nan=False)
        (Path(job.folder) / RESULT).write_text(text, encoding="utf-8")
        return Done(media_type="text/html; charset=utf-8" if html else "application/json")
    except FrxError as error:
        return Refused(message=error.message, hint=error.hint)
    except MemoryError:
        return OutOfMemory()
    except Exception as error:  # noqa: BLE001 - the request fails, not the worker
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        return Failed(error=summarize_error(error), where=tuple(f"{frame.filename}:{frame.lineno}" for frame in frames))


def main() -> None:
    """Answer jobs until the input ends."""
    most_bytes, most_seconds = int(sys.argv[1]), float(sys.argv[2])
    answers = claim_stdout()
    limit_resources({resource.RLIMIT_AS: psutil.Process().memory_info().vms + most_bytes})
    _write_line(answers, READY)
    for line in sys.stdin.buffer:
        # Without a handler the signal ends the process.
        signal.setitimer(signal.ITIMER_REAL, most_seconds)
        found = answer_job(AnalysisJob.model_validate_json(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write_line(answers, found.model_dump_json().encode() + b"\n")


def _write_line(answers: BinaryIO, line: bytes) -> None:
    answers.write(line)
    answers.flush()


if __name__ == "__main__":
    main()

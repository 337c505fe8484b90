"""Jobs and answers between the service and its worker processes: one line of JSON each way."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from frx_graph.evidence.file_kind import FileKind

RESULT: Final = ".result"
"""The file that the result is written to. No uploaded file gets this name."""
TEMPORARY: Final = ".temporary"
"""The folder for unpacked files. It is removed with the job's folder even if the worker was killed."""
READY: Final = b"ready\n"
"""The worker's first line."""
MediaType = Literal["application/json", "text/html; charset=utf-8"]


class Task(enum.StrEnum):
    """Kind of the requested analysis."""

    FILE = "file"
    """Of one file of any kind."""
    CUDA = "cuda"
    NCU = "ncu"
    PTX = "ptx"
    COMPARE = "compare"
    RECONCILE = "reconcile"


class ResultForm(enum.StrEnum):
    """The form of the result."""

    JSON = "json"
    HTML = "html"


class _JobModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobFile(_JobModel):
    """A file in the job's folder. `side` is its side in a comparison; `kind` is the kind that the request declares, if
    any."""

    name: str
    side: Literal["a", "b"] | None = None
    kind: FileKind | None = None


class AnalysisJob(_JobModel):
    """One analysis of the files in `folder`, which also receives the result."""

    task: Task
    folder: str
    files: tuple[JobFile, ...]
    labels: tuple[str, str] = ("a", "b")
    gpu_model: str | None = None
    form: ResultForm = ResultForm.JSON


class Done(_JobModel):
    """The result was written."""

    status: Literal["done"] = "done"
    media_type: MediaType


class Refused(_JobModel):
    """The files cannot be analysed, or not as requested. The user can correct that."""

    status: Literal["refused"] = "refused"
    message: str
    hint: str


class OutOfMemory(_JobModel):
    """The analysis needs more memory than its limit."""

    status: Literal["out_of_memory"] = "out_of_memory"


class Failed(_JobModel):
    """An internal error, for the service's log; `where` holds the innermost code locations (`file.py:12`)."""

    status: Literal["failed"] = "failed"
    error: str
    where: tuple[str, ...] = ()


Answer = Annotated[Done | Refused | OutOfMemory | Failed, Field(discriminator="status")]

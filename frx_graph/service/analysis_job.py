"""Jobs and answers between the service and its worker processes: one line of JSON each way."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from frx_graph.evidence.file_kind import FileKind

RESULT: Final = ".result"
"""The file that the result is written to: no uploaded one is called so."""
TEMPORARY: Final = ".temporary"
"""The folder for what an analysis unpacks, which goes with the job's also where the worker was killed."""
READY: Final = b"ready\n"
"""A worker's first line."""
MediaType = Literal["application/json", "text/html; charset=utf-8"]


class Task(enum.StrEnum):
    """The analysis that is asked for."""

    FILE = "file"
    """Of one file, whatever it is."""
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
    """A file in the job's folder; `side` is the one that it is of, where two are compared, and `kind` the one that the
    request says it is of, if it does."""

    name: str
    side: Literal["a", "b"] | None = None
    kind: FileKind | None = None


class AnalysisJob(_JobModel):
    """One analysis of the files in `folder`, where the result goes, too."""

    task: Task
    folder: str
    files: tuple[JobFile, ...]
    labels: tuple[str, str] = ("a", "b")
    gpu_model: str | None = None
    form: ResultForm = ResultForm.JSON


class Done(_JobModel):
    """The result is in its file."""

    status: Literal["done"] = "done"
    media_type: MediaType


class Refused(_JobModel):
    """The files cannot be analysed, or not as requested; the user can correct that."""

    status: Literal["refused"] = "refused"
    message: str
    hint: str


class OutOfMemory(_JobModel):
    """The analysis needs more memory than it may have."""

    status: Literal["out_of_memory"] = "out_of_memory"


class Failed(_JobModel):
    """An internal error, for the log of the service; `where` are the innermost places of the code, `file.py:12`."""

    status: Literal["failed"] = "failed"
    error: str
    where: tuple[str, ...] = ()


Answer = Annotated[Done | Refused | OutOfMemory | Failed, Field(discriminator="status")]

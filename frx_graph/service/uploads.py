"""Files uploaded as a form, as by a browser or `curl -F`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.requests import Request

from frx_graph.service.http.problem import ProblemError
from frx_graph.service.job_folder import JobFolder

_MOST_FILES, _MOST_FIELDS, _LONGEST_FIELD = 2, 4, 1024
_FILE = {"type": "string", "format": "binary", "minLength": 1, "description": "file to analyse"}
_GPU = {"type": "string", "maxLength": 100, "description": "judge kernels by this GPU instead of the file's"}
_FIELDS = {"file": _FILE, "gpu_model": _GPU}
_SCHEMA = {"type": "object", "required": ["file"], "properties": _FIELDS, "additionalProperties": False}
FORM_BODY: Final[dict[str, Any]] = {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}
"""Describe the form for OpenAPI."""


@dataclass(frozen=True, slots=True)
class Form:
    """A submitted form; `other` is a second file."""

    file: UploadFile
    other: UploadFile | None
    gpu_model: str | None

    def fill(self, folder: JobFolder) -> None:
        """Put the files there; two files become two sides."""
        side: Literal["a"] | None = None if self.other is None else "a"
        folder.add_file(self.file.filename or "file", self.file.file, side)
        if self.other is not None:
            folder.add_file(self.other.filename or "other", self.other.file, "b")


@asynccontextmanager
async def open_form(request: Request, *, two: bool) -> AsyncIterator[Form]:
    """Yield the form of `request`, which may have a second file if `two`. Raises `ProblemError`."""
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise ProblemError(422, "the body is not a form with a file", "curl -F file=@trace.json.gz")
    charset = next((value for name, value in parameters.items() if name.lower() == b"charset"), b"utf-8")
    if charset.lower() not in (b"utf-8", b"utf8"):
        # Forms declare no character set (RFC 7578, section 4.6), and some codecs do not return text.
        raise ProblemError(422, "the form has a character set other than UTF-8", "leave it out")
    form = request.form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS, max_part_size=_LONGEST_FIELD)
    async with form as fields:
        known = {"file", "gpu_model", *(("other",) if two else ())}
        unknown = sorted(set(fields) - known)
        if unknown or len(fields.multi_items()) != len(fields):
            raise ProblemError(422, "the form has unknown or repeated fields", ", ".join(sorted(known)))
        file, other, gpu_model = fields.get("file"), fields.get("other"), fields.get("gpu_model")
        if not isinstance(file, UploadFile) or not file.filename:
            raise ProblemError(422, "the form has no file", "curl -F file=@trace.json.gz")
        if isinstance(other, UploadFile) and not other.filename:
            # Browsers send an empty field if no file was chosen.
            other = None
        if not (other is None or isinstance(other, UploadFile)) or isinstance(gpu_model, UploadFile):
            raise ProblemError(422, "a field of the form is a file instead of text, or text instead of a file")
        yield Form(file, other, gpu_model or None)

"""Errors of the service as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from frx_graph.service.page_environment import get_page_environment

MEDIA_TYPE = "application/problem+json"
_LONGEST_DETAIL = 2000


class Problem(BaseModel):
    """The error, and the next step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = "about:blank"
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    hint: str | None = None


class ProblemError(HTTPException):
    """Error that ends a request with a problem. Within a body the framework passes on only `HTTPException`."""

    def __init__(self, status: int, detail: str, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.hint = hint


def respond_problem(error: ProblemError, scope: Scope) -> Response:
    """Return a page for a browser, else a document."""
    title, hint = HTTPStatus(error.status_code).phrase, error.hint[:_LONGEST_DETAIL] or None
    problem = Problem(title=title, status=error.status_code, detail=error.detail[:_LONGEST_DETAIL], hint=hint)
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        text = problem.model_dump_json(exclude_none=True)
        return Response(text, error.status_code, error.headers, MEDIA_TYPE)
    text = get_page_environment().get_template("problem.html.j2").render(problem=problem)
    return HTMLResponse(text, problem.status, dict(error.headers or {}))

"""A problem as an answer: a page where a browser asks, a document elsewhere."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from frx_graph.service.http.problem import ProblemError, problem_of, problem_response
from frx_graph.service.page_environment import page_environment


def problem_answer(error: ProblemError, scope: Scope) -> Response:
    """The answer to the request of `scope`."""
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        return problem_response(error)
    problem = problem_of(error)
    text = page_environment().get_template("problem.html.j2").render(problem=problem)
    return HTMLResponse(text, problem.status, dict(error.headers or {}))

"""What the OpenAPI document says of answers that the framework does not see: workers write them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from frx_graph.service.http import problem
from frx_graph.service.http.problem import Problem

_PROBLEMS = {
    400: "the body is no JSON, or no form",
    404: "there is none of that number",
    401: "the token is missing, or not the service's",
    403: "a browser sends it for another site's page",
    408: "the body did not arrive in time",
    413: "the body is larger than it may be",
    421: "the service is not asked by its own name",
    422: "what was sent cannot be analysed",
    500: "a fault of frx-graph",
    503: "as much waits, or is held, as may: see Retry-After",
}


def answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of an endpoint whose result is a `model`."""
    return {
        200: {"model": model, "description": "what was found"},
        **problems(*(code for code in _PROBLEMS if code != 404)),
    }


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The same of the errors alone."""
    schema = Problem.model_json_schema()
    return {
        code: {"description": _PROBLEMS[code], "content": {problem.MEDIA_TYPE: {"schema": schema}}} for code in codes
    }

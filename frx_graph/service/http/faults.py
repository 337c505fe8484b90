"""What goes wrong in the service itself: an answer that tells nothing of it, and a line in the log that tells where."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frx_graph.service.http.problem import ProblemError
from frx_graph.service.http.problem_answer import problem_answer
from frx_graph.service.http.request_log import log_line, request_number

_FRAMES: Final = 8
"""The innermost of a traceback."""
_NOBODY_THERE: Final = 499
"""For the log alone: the client has gone, and gets no answer (as nginx calls it)."""


class Faults:
    """ASGI middleware. An error's text is not logged: it may hold what was sent."""

    def __init__(self, app: ASGIApp, log: Callable[[str], None]) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnect:
            await Response(status_code=_NOBODY_THERE)(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            where = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            number = request_number(scope)
            self._log(log_line(request=number, fault=type(error).__name__, where=where[-_FRAMES:]))
            if begun:
                # The connection is closed: half an answer is not to look like a whole one.
                raise
            await problem_answer(fault_of_ours(number), scope)(scope, receive, send)


def fault_of_ours(number: str, what: str = "a fault of frx-graph") -> ProblemError:
    """What is answered, with the request's number."""
    return ProblemError(500, f"{what}; request {number} in the log of the service")

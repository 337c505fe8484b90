"""The web pages, rendered here except for results, which workers render."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache, partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, Response

from frx_graph.ledger.decision import Kind
from frx_graph.ledger.trial_summary import summarize_evidence
from frx_graph.reports.advice.html import NARROW, WIDE, read_template
from frx_graph.reports.trials.event_text import group_trials, parse_trial
from frx_graph.rules.gpu_profile import list_cuda_gpus
from frx_graph.service.analysis_job import ResultForm, Task
from frx_graph.service.analyst import Analyst
from frx_graph.service.decisions import DecisionBook
from frx_graph.service.endpoints import Before, Position
from frx_graph.service.http.problem import ProblemError
from frx_graph.service.page_environment import get_page_environment, read_page_file
from frx_graph.service.plots import draw_trial
from frx_graph.service.uploads import open_form

_PAGE = 50
"""Events on one page."""
_NARROW_PLOT, _WIDE_PLOT = 260.0, 300.0


def make_page_routes(analyst: Analyst, book: DecisionBook) -> APIRouter:
    """Return the routes of the pages, which are not in the OpenAPI document."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def upload() -> Response:
        return _render_page("upload", settings=analyst.settings, gpus=list_cuda_gpus())

    @router.post("/report")
    async def report(request: Request) -> Response:
        analyst.check_room(Task.FILE)
        async with open_form(request, two=True) as form:
            respond = partial(analyst.respond, request, fill=form.fill, gpu_model=form.gpu_model, form=ResultForm.HTML)
            if form.other is None:
                return await respond(task=Task.FILE)
            labels = form.file.filename or "a", form.other.filename or "b"
            return await respond(task=Task.COMPARE, labels=labels)

    @router.get("/decisions")
    async def decisions(
        signature: Annotated[str, Query(pattern="^([0-9a-f]{16})?$")] = "",
        kind: str = "",
        before: Before = None,
    ) -> Response:
        if kind and kind not in list(Kind):
            raise ProblemError(422, "there is no such kind of event", ", ".join(Kind))
        wanted = Kind(kind) if kind else None
        found = await book.read(
            lambda: book.read_last(signature=signature or None, kind=wanted, before=before, limit=_PAGE)
        )
        return _render_page(
            "decisions",
            ledger=str(book.location),
            total=found.total,
            groups=group_trials(found.events)[::-1],
            shown=len(found.events),
            summaries=found.summaries,
            now=datetime.now(UTC),
            older=found.older,
            signature=signature,
            kind=kind,
            kinds=[one.value for one in Kind],
        )

    @router.get("/decisions/{position}")
    async def decision(position: Position) -> Response:
        event, evidence = await book.read(lambda: book.read_event(position))
        trial = parse_trial(evidence)
        return _render_page(
            "decision",
            event=event,
            summary=summarize_evidence(evidence),
            now=datetime.now(UTC),
            trial=trial,
            evidence_of=None if evidence is None or evidence.position == position else evidence.position,
            plots=(None, None)
            if trial is None
            else (draw_trial(trial, WIDE, _WIDE_PLOT), draw_trial(trial, NARROW, _NARROW_PLOT)),
        )

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        found = _load_static_files().get(name)
        if found is None:
            raise ProblemError(404, "there is no such file")
        text, media_type = found
        return Response(text, media_type=media_type)

    return router


def _render_page(name: str, **context: object) -> Response:
    return HTMLResponse(get_page_environment().get_template(f"{name}.html.j2").render(context))


@cache
def _load_static_files() -> dict[str, tuple[str, str]]:
    """Return the text and media type of all files that pages load."""
    script = f"{read_template('page.js')}\n{read_page_file('drop.js')}"
    return {
        "report.css": (read_template("report.css"), "text/css; charset=utf-8"),
        "service.css": (read_page_file("service.css"), "text/css; charset=utf-8"),
        "icon.svg": (read_page_file("icon.svg"), "image/svg+xml"),
        "service.js": (script, "text/javascript; charset=utf-8"),
    }

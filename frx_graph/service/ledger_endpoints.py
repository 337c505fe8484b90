"""The endpoints that read the ledger."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import JSONResponse, Response

from frx_graph.ledger.decision import Kind
from frx_graph.ledger.schema import LedgerDocument
from frx_graph.service.decisions import MOST_EVENTS, DecisionBook, Decisions
from frx_graph.service.http.openapi import answers, problems

LAST_POSITION = 2**31 - 1
"""Of the column that positions are kept in."""
Position = Annotated[int, Path(ge=1, le=LAST_POSITION)]
Before = Annotated[int | None, Query(ge=1, le=LAST_POSITION, description="only events before this one")]
Signature = Annotated[str | None, Query(pattern="^[0-9a-f]{16}$", description="only this graph")]


def ledger_endpoints(book: DecisionBook) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/ledger", tags=["ledger"])

    @router.get("/events", responses=answers(LedgerDocument), response_class=Response)
    async def events(
        signature: Signature = None,
        kind: Kind | None = None,
        before: Before = None,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 20,
    ) -> Response:
        """The last decisions, oldest first; of one graph, what stands for it, too."""

        def asked() -> dict[str, Any]:
            return book.document(book.last(signature=signature, kind=kind, before=before, limit=limit), signature)

        return JSONResponse(await book.read(asked))

    @router.get("/events/{position}", responses={**answers(LedgerDocument), **problems(404)}, response_class=Response)
    async def event(position: Position) -> Response:
        """One decision."""
        found, _ = await book.read(lambda: book.at(position))
        return JSONResponse(book.document(Decisions((found,), 1, None)))

    return router

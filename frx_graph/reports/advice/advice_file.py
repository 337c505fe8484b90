"""Write and read advice as a JSON document, `frx_advice_v1`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from frx_graph.advice import Advice, AdviceSet
from frx_graph.errors import EvidenceError
from frx_graph.reports.render.document import get_adapter, to_json

_NAME = "frx_advice_v1"
_BEGINNING = 4096
"""Bytes at the start that include the schema's name."""
_HINT = "frx advise --format json --output advice.json writes one"


def render_json(advice: Advice) -> str:
    """Return one JSON document, in ASCII, so that any name survives any terminal and file."""
    return json.dumps(to_json(advice), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def render_set(advices: Iterable[Advice]) -> str:
    """Return the advice on several targets as one JSON document."""
    document = to_json(AdviceSet(advice=tuple(advices)))
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def parse_advice(text: bytes | str) -> Advice:
    """Return the advice that a document describes. Raises pydantic's `ValidationError` for any other text."""
    advice: Advice = get_adapter(Advice).validate_json(text)
    return advice


def is_advice(path: Path) -> bool:
    """Return True if the file at `path` begins like advice."""
    try:
        with path.open("rb") as file:
            start = file.read(_BEGINNING)
    except OSError:
        return False
    return start.lstrip().startswith(b"{") and f'"{_NAME}"'.encode() in start


def read_advice(path: Path) -> Advice:
    """Return the advice in the file at `path`. Raises `EvidenceError` for any other file."""
    try:
        return parse_advice(path.read_bytes())
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise EvidenceError(f"{path}: is not {_NAME}: {where}: {first['msg']}", _HINT) from None

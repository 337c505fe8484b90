"""JSON in the one form that is hashed: sorted keys, no spaces, ASCII, finite numbers."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn


def canonical(document: Any) -> str:
    """`document` as text, equal for equal documents. Raises ValueError for what JSON cannot hold."""
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parsed(text: str) -> Any:
    """The document that `text` holds. Raises ValueError for what is not JSON; NaN and infinities are not."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def content_hash(text: str) -> str:
    """SHA-256 in 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

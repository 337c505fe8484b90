"""Canonical JSON for hashing: sorted keys, no spaces, ASCII, finite numbers."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn


def dump_canonical(document: Any) -> str:
    """Return `document` as text. Equal documents give equal text. Raises ValueError for values without a JSON form."""
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_json(text: str) -> Any:
    """Parse `text`. Raises ValueError for anything but JSON; NaN and infinities are not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def hash_content(text: str) -> str:
    """Return the SHA-256 of `text` in 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

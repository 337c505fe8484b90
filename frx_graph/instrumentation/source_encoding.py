"""The encoding that a script's first lines name."""

from __future__ import annotations

import io
import tokenize


def declared_encoding(data: bytes) -> str:
    """`utf-8` where nothing is named; `unknown` for a name that Python does not know."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, ValueError):
        # Also where the first lines are no UTF-8, which decoding them will say.
        return "utf-8" if b"coding" not in b"".join(data.splitlines()[:2]) else "unknown"
    return encoding.removesuffix("-sig")

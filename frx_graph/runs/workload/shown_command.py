"""A command as it is kept in reports, without what is nobody's business."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from frx_graph.support.plain_text import encodable

REDACTED: Final = "[redacted]"
_SECRET = re.compile(
    r"(token|secrets?|passwd|password|passphrase|credentials?|apikey)$|(^|[-_.])(key|keys|auth|authorization|pw)$",
    re.IGNORECASE,
)
"""How names of options or variables end whose values are secret: `--hf-token`, `AWS_SECRET_ACCESS_KEY`; neither
`--tokenizer` nor `--max-tokens`."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*(?=@)")


def without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """The command, in which the values of `--api-key=X`, `--api-key X` and `API_KEY=X` are not told, nor who logs in to
    a URL. What is given may be any bytes; this is text that can be encoded."""
    shown: list[str] = []
    hide = False
    for word in map(encodable, command):
        name, is_set, _ = word.partition("=")
        if hide and not word.startswith("-"):
            shown.append(REDACTED)
            hide = False
            continue
        secret = _SECRET.search(_CAMEL.sub("-", name)) is not None
        hide = secret and not is_set and name.startswith("-")
        shown.append(f"{name}={REDACTED}" if secret and is_set else _USER_OF_URL.sub(REDACTED, word))
    return tuple(shown)

"""Text that is no program, and that would take the parser minutes: it is refused before it is parsed."""

from __future__ import annotations

import re

_MOST_SEARCHED = 200_000_000
"""Characters in which the parser looks for the end of comments that have none, for each of them to the end of the file:
200 KB of them took 15 s."""
_MOST_STRAY = 2_000
"""Characters that begin nothing. At each the parser tries all that its grammar has, which takes 75 µs, a thousand times
as long as any other character: 240 KB of `"\\"` took 6 s. Programs have none."""
_RARE = bytes([*b"@`\\#", *range(9), *range(14, 32), *range(127, 256)])
"""All bytes that may be in one."""
_STRAY = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|R"([^()\\\s]{0,16})\(.*?(?:\)\1"|\Z)|"(?:[^"\\\n]|\\.)*"?'
    r"|'(?:[^'\\\n]|\\.){0,10}'|\\\r?\n|^[ \t]*#(?:[^\n\\]|\\.)*|(?P<stray>[^\w\s!-/:-?\[\]^{-~]+|(?<=\S)#)",
    re.DOTALL | re.MULTILINE,
)
"""Comments, strings, characters and directives, in which everything may stand, and what may stand nowhere else."""


def endless(text: str) -> str | None:
    """What there is too much of in it, None if it can be parsed."""
    closed = text.rfind("*/") + 1
    never_closed = text.count("/*", closed)
    if never_closed * (len(text) - closed) > _MOST_SEARCHED:
        return f"{never_closed:,} comments begin and none of them ends"
    written = text.encode("utf-8", "replace")
    if len(written) - len(written.translate(None, _RARE)) <= _MOST_STRAY:
        return None
    stray = sum(found["stray"] is not None for found in _STRAY.finditer(text))
    return f"{stray:,} characters that CUDA does not know" if stray > _MOST_STRAY else None

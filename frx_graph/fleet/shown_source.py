"""Shows a fleet's source without secrets: a URL without what may be a password, a token or a signature.

Reports, tables and errors all use it, since drivers put a URL, or parts of it, into their errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from frx_graph.support.plain_text import clean_line

_HIDDEN: Final = "***"
_CHAIN: Final = "::"
"""Between the URLs of file systems that fsspec opens one in another, as in `zip://a.zip::ftp://host/b`."""
_SHORTEST: Final = 6
"""Characters of a secret, but for passwords: shorter values of options, as `1`, would be hidden in every number."""
_LONGEST: Final = 1000
_URL = re.compile(
    r"(?P<scheme>[^:/?#]*://)"
    # A slash in a password is wrong, and a password all the same; behind a port there is none.
    r"(?:(?P<user>[^/?#:]*:(?!\d+/)[^?#]*|[^/?#]*)@)?"
    r"(?P<place>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ShownSource:
    """`text` is on one line, and has none of the `secrets`."""

    text: str
    secrets: tuple[str, ...] = ()

    @staticmethod
    def from_source(source: str) -> ShownSource:
        """That of a path, or of a URL as fsspec takes it."""
        links = [_URL.fullmatch(link) or link for link in source.split(_CHAIN)]
        text = _CHAIN.join(link if isinstance(link, str) else _redact_url(link) for link in links)
        secrets = {secret for link in links if not isinstance(link, str) for secret in _iterate_secrets(link)}
        # The longest first: hiding a part of a secret would leave the rest in the text.
        return ShownSource(
            clean_line(text, _LONGEST), tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))
        )

    def hide(self, said: str) -> str:
        """A text about the source, an error's for instance, without the secrets."""
        for secret in self.secrets:
            said = said.replace(secret, _HIDDEN)
        return said


def _redact_url(link: re.Match[str]) -> str:
    user = "" if link["user"] is None else f"{_HIDDEN}@"
    query = "" if link["query"] is None else f"?{_HIDDEN}"
    return f"{link['scheme']}{user}{link['place']}{query}"


def _iterate_secrets(link: re.Match[str]) -> Iterator[str]:
    """As they are in the URL, and as drivers write them."""
    user, query = link["user"] or "", link["query"] or ""
    name, _, password = user.partition(":")
    values = [option.partition("=")[2] for option in query.split("&")]
    for secret in (user, name, query, *values):
        yield from (form for form in _list_spellings(secret) if len(form) >= _SHORTEST)
    yield from _list_spellings(password)


def _list_spellings(secret: str) -> set[str]:
    plain = unquote(secret)
    return {secret, plain, quote(plain), quote(plain, safe="")} - {""}

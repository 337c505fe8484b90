"""Show a fleet's source without secrets: a URL without possible passwords, tokens and signatures.

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
"""Separates nested URLs, which fsspec opens one in another, as in `zip://a.zip::ftp://host/b`."""
_SHORTEST: Final = 6
"""Fewest characters of a secret other than a password: a shorter one, such as `1`, would be hidden in every number."""
_LONGEST: Final = 1000
_URL = re.compile(
    r"(?P<scheme>[^:/?#]*://)"
    # A slash in a password is wrong, but still part of it; after a port there is no password.
    r"(?:(?P<user>[^/?#:]*:(?!\d+/)[^?#]*|[^/?#]*)@)?"
    r"(?P<place>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ShownSource:
    """A source's `text`, on one line, without any of the `secrets`."""

    text: str
    secrets: tuple[str, ...] = ()

    @staticmethod
    def from_source(source: str) -> ShownSource:
        """Return the shown source of a path, or of a URL in fsspec's form."""
        links = [_URL.fullmatch(link) or link for link in source.split(_CHAIN)]
        text = _CHAIN.join(link if isinstance(link, str) else _redact_url(link) for link in links)
        secrets = {secret for link in links if not isinstance(link, str) for secret in _iterate_secrets(link)}
        # Longest first: hiding a part of a secret would leave the rest in the text.
        return ShownSource(
            clean_line(text, _LONGEST), tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))
        )

    def hide(self, said: str) -> str:
        """Return a text about the source, such as an error, without the secrets."""
        for secret in self.secrets:
            said = said.replace(secret, _HIDDEN)
        return said


def _redact_url(link: re.Match[str]) -> str:
    user = "" if link["user"] is None else f"{_HIDDEN}@"
    query = "" if link["query"] is None else f"?{_HIDDEN}"
    return f"{link['scheme']}{user}{link['place']}{query}"


def _iterate_secrets(link: re.Match[str]) -> Iterator[str]:
    """Return the secrets as written in the URL, and as drivers write them."""
    user, query = link["user"] or "", link["query"] or ""
    name, _, password = user.partition(":")
    values = [option.partition("=")[2] for option in query.split("&")]
    for secret in (user, name, query, *values):
        yield from (form for form in _list_spellings(secret) if len(form) >= _SHORTEST)
    yield from _list_spellings(password)


def _list_spellings(secret: str) -> set[str]:
    plain = unquote(secret)
    return {secret, plain, quote(plain), quote(plain, safe="")} - {""}

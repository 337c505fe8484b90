"""Serve only requests that use a name of the service and carry the token, if one is set, and restrict browsers."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frx_graph.service.http.problem import ProblemError, respond_problem
from frx_graph.service.settings import ServiceSettings, is_loopback

OPEN = frozenset({"/healthz"})
"""Paths that reveal nothing private, and so need no token."""
_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for the service's own pages and for the user. Other programs send no such header."""
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Without a referrer the origin of the service's own forms would be "null", like that of hostile forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_KEPT = "/static/"
"""Path of the package's own files. All other answers are private, and must not be cached."""
_CHALLENGE = 'Basic realm="frx-graph", charset="UTF-8"'


class Access:
    """ASGI middleware against DNS rebinding: a hostile page can reach a service on the browser's machine through its
    own host name, but not under the service's name."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        token = settings.token
        self._token = None if token is None else token.get_secret_value().encode("ascii")
        self._named = frozenset(host.lower() for host in settings.allowed_hosts)
        self._hosts = self._named | {settings.host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or answer with a problem."""
        if scope["type"] == "http" and (error := self._find_objection(scope)) is not None:
            await respond_problem(error, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _find_objection(self, scope: Scope) -> ProblemError | None:
        if scope["path"] in OPEN:
            return None
        if scope["method"] == "POST" and not self._is_of_own_page(Headers(scope=scope)):
            return ProblemError(403, "another site's page has sent this", "open the service's own page")
        if self._token is None:
            hosts = [_strip_port(value) for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or not (hosts[0] in self._hosts or is_loopback(hosts[0])):
                return ProblemError(421, "the service does not use that name", "name it with --allow-host")
            return None
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or not hmac.compare_digest(_parse_token(given[0]), self._token):
            hint = "Authorization: Bearer TOKEN, or any name with the token as its password"
            return ProblemError(401, "the service's token is needed", hint, {"WWW-Authenticate": _CHALLENGE})
        return None

    def _is_of_own_page(self, headers: Headers) -> bool:
        """Return False if a browser reports another site's page as the origin. Other programs report nothing."""
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site in _OWN_SITES
        # Browsers send only this to an unencrypted service on another machine.
        origin = headers.get("origin")
        if origin is None:
            return True
        place = origin.partition("://")[2].lower()
        return place == headers.get("host", "").lower() or _strip_port(place.encode("latin-1")) in self._named


def _strip_port(host: bytes) -> str:
    """Return the host without its port, in lower case."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text.partition("]")[0].removeprefix("[")
    return text.partition(":")[0]


def _parse_token(header: bytes) -> bytes:
    """Return the token in the header; empty if it cannot be read."""
    scheme, _, value = header.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""


class SecurityHeaders:
    """ASGI middleware. Its headers restrict a browser to content from the service itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, and add the headers to its answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "max-age=3600" if scope["path"].startswith(_KEPT) else "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)

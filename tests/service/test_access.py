from __future__ import annotations

import asyncio
import base64

import pytest
from pydantic import ValidationError

from frx_graph.service.access import Access
from frx_graph.service.settings import ServiceSettings, is_loopback

TOKEN = "a-token-that-is-long-enough"


def status(settings: ServiceSettings, path: str = "/", **headers: str) -> int:
    """What is answered; 200 where the application is asked."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": "GET", "headers": raw}
    asyncio.run(Access(app, settings)(scope, None, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8787", 200),
        ("localhost", 200),
        ("[::1]:8787", 200),
        ("LOCALHOST:1", 200),
        ("frx.example:8787", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_without_a_token_only_names_of_this_machine_are_served(host, expected):
    assert status(ServiceSettings(allowed_hosts=("frx.example",)), host=host) == expected


def test_a_request_without_a_host_is_not_served_but_health_is():
    assert status(ServiceSettings()) == 421
    assert status(ServiceSettings(), "/healthz", host="evil.example") == 200


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer   {TOKEN} ", 200),
        ("Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode(), 200),
        ("Basic " + base64.b64encode(TOKEN.encode()).decode(), 401),
        ("Basic %%%", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN}x", 401),
        ("Bearer ", 401),
        ("Bearer \xff\xfe", 401),
        (TOKEN, 401),
        ("", 401),
    ],
)
def test_with_a_token_only_who_has_it_is_served(header, expected):
    settings = ServiceSettings(host="0.0.0.0", token=TOKEN)
    assert status(settings, host="anything.example", authorization=header) == expected
    assert status(settings, "/healthz") == 200
    assert status(settings) == 401


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert status(ServiceSettings(token=TOKEN), authorization="Bearer nearly") == 401
    assert compared == [(b"nearly", TOKEN.encode())]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "frx.example", ""])
def test_beyond_this_machine_a_token_is_needed(host):
    with pytest.raises(ValidationError, match="token is needed"):
        ServiceSettings(host=host)
    assert ServiceSettings(host=host, token=TOKEN).token is not None


@pytest.mark.parametrize(("token", "said"), [("short", "fewer than 16"), ("ä" * 20, "no header can hold")])
def test_a_token_must_be_fit_to_be_one(token, said):
    with pytest.raises(ValidationError, match=said):
        ServiceSettings(token=token)
    assert token not in repr(ServiceSettings(token=TOKEN))
    assert TOKEN not in repr(ServiceSettings(token=TOKEN))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("1.2.3.4", False)],
)
def test_what_is_loopback(host, expected):
    assert is_loopback(host) is expected

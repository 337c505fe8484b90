from __future__ import annotations

import asyncio
import base64

import pytest
from pydantic import ValidationError

from frx_graph.service.http.access import Access
from frx_graph.service.settings import ServiceSettings, is_loopback

TOKEN = "a-token-that-is-long-enough"


def status(settings: ServiceSettings, path: str = "/", method: str = "GET", **headers: str) -> int:
    """What is answered; 200 where the application is asked."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": raw}
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


@pytest.mark.parametrize(
    ("site", "expected"),
    [("same-origin", 200), ("none", 200), ("cross-site", 403), ("same-site", 403), ("nonsense", 403)],
)
def test_a_page_of_another_site_may_lead_here_and_send_nothing(site, expected):
    for settings, headers in (
        (ServiceSettings(), {"host": "localhost"}),
        (ServiceSettings(token=TOKEN), {"authorization": f"Bearer {TOKEN}"}),
    ):
        assert status(settings, method="POST", sec_fetch_site=site, **headers) == expected
        assert status(settings, sec_fetch_site=site, **headers) == 200
        assert status(settings, method="POST", **headers) == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8787", 200),
        ("https://frx.example", 200),
        ("http://localhost:8888", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_origin_header_decides_access(origin, expected):
    settings = ServiceSettings(allowed_hosts=("frx.example",))
    assert status(settings, method="POST", host="localhost:8787", origin=origin) == expected
    told = {"host": "localhost:8787", "origin": origin, "sec_fetch_site": "same-origin"}
    assert status(settings, method="POST", **told) == 200


@pytest.mark.parametrize("host", ["https://frx.example", "frx.example:8080"])
def test_a_name_that_is_allowed_is_a_name_alone(host):
    with pytest.raises(ValidationError, match="leave out scheme and port"):
        ServiceSettings(allowed_hosts=(host,))
    assert ServiceSettings(allowed_hosts=("::1", "frx.example")).allowed_hosts


def test_one_body_has_room_among_all():
    with pytest.raises(ValidationError, match="all together"):
        ServiceSettings(upload_bytes=10, held_bytes=9)


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
def test_only_requests_with_the_token_are_served(header, expected):
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


@pytest.mark.parametrize(("token", "said"), [("short", "fewer than 16"), ("ä" * 20, "not allowed in a header")])
def test_a_token_must_be_fit_to_be_one(token, said):
    with pytest.raises(ValidationError, match=said):
        ServiceSettings(token=token)
    assert token not in repr(ServiceSettings(token=TOKEN))
    assert TOKEN not in repr(ServiceSettings(token=TOKEN))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:1.2.3.4", False),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("1.2.3.4", False),
    ],
)
def test_loopback_hosts_are_recognized(host, expected):
    assert is_loopback(host) is expected

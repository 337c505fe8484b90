"""What may be a password, a token or a signature is in nothing that is shown, in whatever form a driver repeats it."""

from __future__ import annotations

import pytest

from frx_graph.fleet.shown_source import ShownSource


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("runs", "runs"),
        ("/data/user:x@y/a?b::c", "/data/user:x@y/a?b::c"),
        ("s3://bucket/runs", "s3://bucket/runs"),
        ("s3://bucket/run@2/x", "s3://bucket/run@2/x"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("ftp://user:secret@host/runs", "ftp://***@host/runs"),
        ("https://t0ken-of-mine@host/runs", "https://***@host/runs"),
        ("ftp://user:sec/r@et@host/runs", "ftp://***@host/runs"),
        ("https://host/a.zip?X-Amz-Signature=abcdef&v=1#part", "https://host/a.zip?***"),
        ("zip://a.zip::ftp://user:secret@host/b", "zip://a.zip::ftp://***@host/b"),
    ],
)
def test_how_a_source_is_shown(source: str, shown: str) -> None:
    assert ShownSource.from_source(source).text == shown


@pytest.mark.parametrize(
    "said",
    [
        "530 Login of user:se%2Fcret refused",
        "530 Login with se/cret refused",
        "403, url='https://user:se%2Fcret@host/a?sig=abc/def%2Bg&v=1'",
        "403, sig=abc%2Fdef%2Bg",
        "403, signature abc/def+g is wrong",
    ],
)
def test_errors_do_not_repeat_it(said: str) -> None:
    hidden = ShownSource.from_source("https://user:se%2Fcret@host/a?sig=abc%2Fdef%2Bg&v=1").hide(said)
    assert "***" in hidden
    assert not any(secret in hidden for secret in ("se/cret", "se%2Fcret", "abc", "def"))


def test_other_texts_stay_as_they_are() -> None:
    assert ShownSource.from_source("https://user:secret@host/a?v=1").hide("1 run, of user") == "1 run, of user"
    assert ShownSource.from_source("runs").hide("runs") == "runs"


def test_it_is_one_line() -> None:
    assert ShownSource.from_source("ftp://a:b@h/\x1b[31m\nx").text == "ftp://***@h/[31m x"

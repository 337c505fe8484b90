from __future__ import annotations

import builtins
import signal
import subprocess
import sys

import httpx
import pytest

from frx_graph.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "frx serve: 0.0.0.0 can be reached from other machines"),
        (["--host", "0.0.0.0", "--token-file", "{short}"], "has fewer than 16 characters"),
        (["--token-file", "{missing}"], "cannot be read"),
        (["--ledger", "sqlite:///:memory:"], "a ledger in memory would be lost at exit"),
    ],
)
def test_unusable_serve_options_are_reported_in_one_line(tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.delenv("FRX_SERVE_TOKEN", raising=False)
    (tmp_path / "short").write_text("short\n")
    places = {"{short}": str(tmp_path / "short"), "{missing}": str(tmp_path / "missing")}
    assert run(["serve", "--port", "0", *(places.get(each, each) for each in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert "short\n" not in error


def test_a_port_that_is_taken_is_an_error(capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "frx serve cannot listen on" in capsys.readouterr().err


def test_missing_packages_error_names_the_extra(capsys, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "frx_graph.service.http.connection", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert run(["serve"]) == 2
    assert "pip install 'frx-graph[serve]'" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_with_a_token_until_stopped_by_a_signal(tmp_path, number):
    token = "a-token-of-some-length"
    (tmp_path / "token").write_text(f"{token}\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "frx_graph", "serve", "--port", "0", "--host", "0.0.0.0", "--workers", "1"),
            *("--token-file", str(tmp_path / "token"), "--ledger", str(tmp_path / "ledger.sqlite3")),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stderr.readline()
        assert ", with the token;" in line
        assert token not in line
        url = f"http://127.0.0.1:{line.split(':')[3].split(',')[0]}"
        with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=100), timeout=180) as client:
            assert client.get("/ledger/events").status_code == 401
            assert client.get("/ledger/events", auth=("anybody", token)).json()["total"] == 0
        process.send_signal(number)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()

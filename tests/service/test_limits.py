"""How much one request may cost, and that the others do not pay for it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from frx_graph.service import worker_pool


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Workers that do what the PTX says in place of analysing it, quickly started."""
    script = tmp_path / "pretended_worker.py"
    script.write_text(
        "import json, os, pathlib, subprocess, sys, time\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
        "for line in sys.stdin:\n"
        "    job = json.loads(line)\n"
        "    told = (pathlib.Path(job['folder']) / job['files'][0]['name']).read_text()\n"
        "    answer = {'status': 'done', 'media_type': 'application/json'}\n"
        "    if told == 'hang':\n"
        "        subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "        time.sleep(600)\n"
        "    if told == 'die': os._exit(3)\n"
        "    if told == 'nonsense': answer = {'status': 'perhaps'}\n"
        "    if told == 'fail': answer = {'status': 'failed', 'error': 'KeyError: 1'}\n"
        "    if told == 'memory': answer = {'status': 'out_of_memory'}\n"
        "    if told.startswith('slow'): time.sleep(1.0)\n"
        "    text = 'x' * 3000 if told == 'long' else json.dumps({'pid': os.getpid()})\n"
        "    (pathlib.Path(job['folder']) / '.result').write_text(text)\n"
        "    print(json.dumps(answer), flush=True)\n"
    )
    monkeypatch.setattr(worker_pool, "WORKER", (str(script),))


def ask(url: str, told: str = "quick", **options) -> httpx.Response:
    return httpx.post(f"{url}/ptx/analyze", json={"ptx_text": told}, timeout=30, **options)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        ("hang", 422, "took longer than 0.5 s"),
        ("die", 500, "has ended its process"),
        ("nonsense", 500, "has ended its process"),
        ("fail", 500, "KeyError: 1"),
        ("memory", 422, "needs more memory than"),
        ("long", 422, "larger than may be sent"),
    ],
)
def test_an_analysis_that_goes_wrong_ends_alone(served, told, status, said):
    url = served(analysis_seconds=0.5, result_bytes=1000)
    before = ask(url).json()["pid"]
    answer = ask(url, told)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    after = ask(url)
    assert after.status_code == 200
    assert (after.json()["pid"] == before) is (told in ("fail", "long"))
    children = [child.name() for child in psutil.Process().children(recursive=True)]
    assert "sleep" not in children


@pytest.mark.usefixtures("worker")
def test_more_than_may_wait_are_told_to_come_back(served):
    url = served(queue=1, analysis_seconds=20)
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(url, "slow"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200, 200, 503, 503, 503]
    assert all(answer.headers["retry-after"] == "2" for answer in answers if answer.status_code == 503)
    assert ask(url).status_code == 200


@pytest.mark.usefixtures("worker")
def test_what_was_accepted_is_answered_before_the_service_stops(served, request):
    url = served(analysis_seconds=20)
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(ask(url, "slow")))
    thread.start()
    deadline = time.monotonic() + 30
    while "frx_workers_busy 1.0" not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    request.getfixturevalue("stop_all")()
    thread.join()
    assert [answer.status_code for answer in answers] == [200]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/healthz")


@pytest.mark.usefixtures("worker")
def test_a_body_that_says_that_it_is_too_large_is_refused_at_once(served):
    url = served(text_bytes=1000, upload_bytes=5000)
    answer = ask(url, "x" * 1000)
    assert answer.status_code == 413
    assert answer.json()["detail"] == "the body is larger than 1,000 bytes"
    assert ask(url, "x" * 900).status_code == 200
    answer = httpx.post(f"{url}/analyze", files={"file": ("a.ptx", b"x" * 5000)})
    assert answer.status_code == 413


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("path", ["/ptx/analyze", "/analyze"])
def test_a_body_without_end_is_cut_off_where_it_becomes_too_large(served, path):
    url = served(text_bytes=100_000, upload_bytes=200_000)
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    kind = "application/json" if path.startswith("/ptx") else "multipart/form-data; boundary=b"
    try:
        answer = httpx.post(f"{url}{path}", content=body(), headers={"Content-Type": kind}, timeout=30)
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the connection was closed while the client still wrote
    assert sent < 50 << 20
    assert ask(url).status_code == 200


@pytest.mark.usefixtures("worker")
def test_all_bodies_together_hold_no_more_than_they_may(served):
    url = served(text_bytes=100_000, held_text_bytes=150_000, idle_seconds=20)
    with _begun(url, 100_000, b'{"ptx_text": "' + b"x" * 90_000) as slow:
        answer = ask(url, "x" * 90_000)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert ask(url, "y" * 9_000).status_code == 200
        slow.close()
    deadline = time.monotonic() + 30
    while ask(url, "x" * 90_000).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("worker")
def test_a_body_that_does_not_come_is_not_waited_for(served):
    url = served(idle_seconds=0.3)
    with _begun(url, 1000, b'{"ptx_text":') as slow:
        assert b" 408 " in slow.recv(4096)


@pytest.mark.usefixtures("worker")
def test_a_body_that_comes_too_slowly_is_not_waited_for(served):
    url = served(idle_seconds=5, body_seconds=0.5)
    with _begun(url, 1000, b'{"ptx_text": "') as slow:
        slow.settimeout(0.1)
        answer = b""
        for _ in range(50):
            try:
                slow.sendall(b"x")
                answer = slow.recv(4096)
                break
            except TimeoutError:
                continue
        assert b" 408 " in answer


@pytest.mark.usefixtures("worker")
def test_clients_that_send_nothing_do_not_stop_the_others(served):
    url = served(idle_seconds=30)
    slow = [_begun(url, 1000, b'{"ptx') for _ in range(200)]
    try:
        assert ask(url).status_code == 200
    finally:
        for one in slow:
            one.close()


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "99999999999999999999"])
def test_a_length_that_is_none_is_refused(client, length):
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(
            f"POST /ptx/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(4096).split(b" ")[1] in (b"400", b"413")


@pytest.mark.usefixtures("worker")
def test_a_worker_that_is_killed_is_started_again(served):
    url = served()
    pid = ask(url).json()["pid"]
    os.kill(pid, signal.SIGKILL)
    answers = [ask(url) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [500, 200]
    assert answers[1].json()["pid"] != pid


def _begun(url: str, length: int, beginning: bytes) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.sendall(
        f"POST /ptx/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n".encode()
        + beginning
    )
    return connection

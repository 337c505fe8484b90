"""How much one request may cost, and that the others do not pay for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from frx_graph.cli.main import run
from frx_graph.service import worker_pool
from frx_graph.service.analysis_job import TEMPORARY, AnalysisJob, JobFile, Task
from frx_graph.service.decisions import DecisionBook, Decisions
from frx_graph.service.job_folder import JobFolder


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Workers that do what the PTX says in place of analysing it, quickly started."""
    script = tmp_path / "pretended_worker.py"
    script.write_text(
        "import json, os, pathlib, subprocess, sys, time\n"
        f"with open({str(tmp_path / 'starts')!r}, 'a') as starts: starts.write('x')\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
        "for line in sys.stdin:\n"
        "    job = json.loads(line)\n"
        "    told = (pathlib.Path(job['folder']) / job['files'][0]['name']).read_text()\n"
        "    answer = {'status': 'done', 'media_type': 'application/json'}\n"
        "    if told == 'hang':\n"
        "        sleeping = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"        pathlib.Path({str(tmp_path / 'sleeping')!r}).write_text(str(sleeping.pid))\n"
        "        time.sleep(600)\n"
        "    if told == 'die': sys.stderr.write('last words'); sys.stderr.flush(); os._exit(3)\n"
        "    if told == 'abort': sys.stderr.write('memory allocation of 9 bytes failed'); os.abort()\n"
        "    if told == 'flood': sys.stderr.write('x' * (100 << 20))\n"
        "    if told == 'nonsense': answer = {'status': 'perhaps'}\n"
        "    if told == 'fail': answer = {'status': 'failed', 'error': 'KeyError: 1'}\n"
        "    if told == 'memory': answer = {'status': 'out_of_memory'}\n"
        "    if told.startswith('slow'): time.sleep(1.0)\n"
        "    size = {'long': 3000, 'large': 40 << 20}.get(told, 0)\n"
        "    text = 'x' * size if size else json.dumps({'pid': os.getpid()})\n"
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
        ("die", 500, "crashed its process"),
        ("nonsense", 500, "crashed its process"),
        ("fail", 500, "a fault of frx-graph; request "),
        ("abort", 422, "needs more memory than"),
        ("memory", 422, "needs more memory than"),
        ("long", 422, "exceeds the size limit"),
    ],
)
def test_an_analysis_that_goes_wrong_ends_alone(served, told, status, said, tmp_path):
    url = served(analysis_seconds=0.5, result_bytes=1000)
    before = ask(url).json()["pid"]
    answer = ask(url, told)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    after = ask(url)
    assert after.status_code == 200
    assert (after.json()["pid"] == before) is (told in ("fail", "long"))
    if told == "hang":
        _wait_until(lambda: not is_running(int((tmp_path / "sleeping").read_text())))


@pytest.mark.usefixtures("worker")
def test_last_worker_output_is_logged_but_not_in_the_response(served):
    log: list[str] = []
    url = served(log=log.append, analysis_seconds=20)
    answers = [ask(url, told) for told in ("die", "fail", "flood")]
    assert [answer.status_code for answer in answers] == [500, 500, 200]
    assert not any(word in answer.text for answer in answers for word in ("last words", "KeyError"))
    faults = [line for line in map(json.loads, log) if "fault" in line]
    assert [line["fault"] for line in faults] == ["the analysis crashed its process", "KeyError: 1"]
    assert (faults[0]["worker"], faults[0]["said"]) == ("exit code 3", "last words")
    for answer, line in zip(answers, faults, strict=False):
        assert answer.headers["x-request-id"] == line["request"]
        assert line["request"] in answer.json()["detail"]


@pytest.mark.usefixtures("worker")
def test_analysis_for_a_disconnected_client_is_given_up(served):
    url = served(analysis_seconds=60, queue=0)
    with _begun(url, 20, b'{"ptx_text": "hang"}'):
        _wait_until(lambda: "frx_workers_busy 1.0" in httpx.get(f"{url}/metrics").text)
        assert ask(url).status_code == 503
    _wait_until(lambda: ask(url).status_code == 200)
    for figure in ('frx_analyses_total{outcome="given_up",task="ptx"} 1.0', 'status="499"'):
        _wait_until(lambda figure=figure: figure in httpx.get(f"{url}/metrics").text)


@pytest.mark.usefixtures("worker")
def test_who_hangs_up_again_and_again_costs_no_more_than_who_waits(served, tmp_path):
    url = served()
    pid = ask(url).json()["pid"]
    for _ in range(30):
        with _begun(url, 21, b'{"ptx_text": "quick"}'):
            time.sleep(0.01)
    assert ask(url).json()["pid"] == pid
    assert (tmp_path / "starts").read_text() == "x"


@pytest.mark.usefixtures("worker")
def test_starting_worker_survives_a_client_that_disconnects(served, tmp_path):
    url = served()
    os.kill(ask(url).json()["pid"], signal.SIGKILL)
    for _ in range(10):
        with _begun(url, 21, b'{"ptx_text": "quick"}'):
            time.sleep(0.01)
    assert ask(url).status_code == 200
    assert (tmp_path / "starts").read_text() == "xx"


@pytest.mark.usefixtures("worker")
def test_another_worker_starts_before_it_is_asked_for(served, tmp_path):
    url = served(analysis_seconds=20)
    assert ask(url, "die").status_code == 500
    _wait_until(lambda: (tmp_path / "starts").read_text() == "xx")


@pytest.mark.usefixtures("worker")
def test_a_large_body_is_not_received_where_it_would_have_to_wait_too_long(served):
    url = served(analysis_seconds=60, queue=0)
    with _begun(url, 20, b'{"ptx_text": "hang"}'):
        _wait_until(lambda: "frx_workers_busy 1.0" in httpx.get(f"{url}/metrics").text)
        with _begun(url, 50 << 20, b"--b\r\n", path="/analyze", kind="multipart/form-data; boundary=b") as large:
            assert b" 503 " in large.recv(4096)
        assert 'frx_analyses_total{outcome="turned_away",task="file"} 1.0' in httpx.get(f"{url}/metrics").text


@pytest.mark.usefixtures("worker")
def test_body_limit_depends_on_the_route_not_the_content_type(served):
    url = served(text_bytes=1000, upload_bytes=500_000)
    told = {"content": b"x" * 2000, "timeout": 30}
    for kind in (["multipart/form-data; boundary=b"], ["application/json", "multipart/form-data; boundary=b"]):
        answer = httpx.post(f"{url}/ptx/analyze", headers=[("Content-Type", each) for each in kind], **told)
        assert answer.status_code == 413


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/nothing", "", b" 404 "), ("/healthz", "", b" 405 "), ("/analyze", "Host: evil.example\r\n", b" 421 ")],
)
def test_unread_body_is_not_received_completely(served, path, headers, status):
    url = served()
    address = urlsplit(url)
    host = headers or "Host: localhost\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n".encode())
        answer = connection.recv(1 << 16)
        assert status in answer
        assert b"connection: close" in answer.lower()
        with pytest.raises(OSError):  # reset, or a broken pipe
            for _ in range(1000):
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    assert httpx.get(f"{url}/healthz").status_code == 200


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n", b" 404 "),
        (b"POST /ptx/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", b" 413 "),
        (b"no request\r\n\r\n", b" 400 "),
    ],
)
def test_answer_reaches_a_client_that_is_still_sending(served, head, status):
    url = served()
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(head)
        _wait_until(lambda: _answered(connection))
        # Each part would be answered with a reset, and the next one would not be sent any more.
        for _ in range(20):
            connection.sendall(b"x" * 100_000)
            time.sleep(0.01)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert status in answer


@pytest.mark.usefixtures("worker")
def test_client_that_disconnects_after_the_answer_is_not_a_fault(served):
    log: list[str] = []
    url = served(log=log.append)
    address = urlsplit(url)
    for _ in range(20):
        # One write is all of the answer, and the reset comes behind it.
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            connection.sendall(b"HEAD /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n")
    _wait_until(lambda: sum('"HEAD"' in line for line in log) == 20)
    assert not [line for line in log if "fault" in line]


@pytest.mark.usefixtures("worker")
def test_a_body_that_is_none_ends_its_request(served):
    log: list[str] = []
    # Shorter than what still comes is dropped: who waited for the rest would time out, behind the answer.
    url = served(log=log.append, idle_seconds=4)
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        head = b"POST /ptx/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        time.sleep(0.3)
        connection.sendall(b"zz\r\n")
        assert b" 400 " in connection.recv(4096)
        _wait_until(lambda: any("/ptx/analyze" in line for line in log))
    assert not [line for line in log if "fault" in line]


def _answered(connection: socket.socket) -> bool:
    return bool(connection.recv(1, socket.MSG_PEEK))


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_connection_without_a_request_is_not_kept(served, beginning):
    url = served(idle_seconds=0.5)
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(beginning)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(10) == b""
    # One that asks again and again is.
    with httpx.Client(base_url=url) as client:
        for _ in range(4):
            assert client.get("/healthz").status_code == 200
            time.sleep(0.3)


@pytest.mark.usefixtures("worker")
def test_unread_response_is_dropped(served):
    url = served(idle_seconds=1.0)
    told = b'{"ptx_text": "large"}'
    with _begun(url, len(told), told) as connection:
        # More than the kernel and the server hold between them.
        _wait_until(lambda: 'frx_http_requests_total{method="POST"' in httpx.get(f"{url}/metrics").text)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                received += part
        assert len(received) < _LARGE
    whole = ask(url, "large")
    assert len(whole.content) == int(whole.headers["content-length"]) == _LARGE


_LARGE = 40 << 20


@pytest.mark.usefixtures("worker")
def test_requests_beyond_the_queue_are_asked_to_retry(served):
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
def test_accepted_requests_are_answered_before_the_service_stops(served, request):
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
def test_body_with_a_too_large_declared_length_is_refused_at_once(served):
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
def test_invalid_length_is_refused(client, length):
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(
            f"POST /ptx/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(4096).split(b" ")[1] in (b"400", b"413")


@pytest.mark.usefixtures("worker")
def test_a_worker_that_ends_while_it_has_nothing_to_do_is_started_again(served):
    url = served()
    pid = ask(url).json()["pid"]
    os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: not psutil.pid_exists(pid))
    answer = ask(url)
    assert answer.status_code == 200
    assert answer.json()["pid"] != pid


@pytest.mark.parametrize("what", ["time", "memory"])
def test_the_limits_that_a_real_worker_sets_itself(tmp_path, what):
    """Also where nobody is left who would end it."""
    (tmp_path / "t.json").write_text('{"traceEvents": [' + ",".join(['{"ph": "X", "name": "a"}'] * 400_000) + "]}")
    limits = {"time": (4 << 30, 0.05), "memory": (1 << 20, 300.0)}[what]
    process = subprocess.Popen(
        [sys.executable, "-m", "frx_graph.service.worker", *map(str, limits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    job = AnalysisJob(task=Task.FILE, folder=str(tmp_path), files=(JobFile(name="t.json"),))
    output, _ = process.communicate(job.model_dump_json() + "\n", timeout=240)
    if what == "time":
        assert (output, process.returncode) == ("ready\n", -signal.SIGALRM)
    else:
        assert json.loads(output.removeprefix("ready\n")) == {"status": "out_of_memory"}


def test_what_an_analysis_unpacks_goes_with_its_job(tmp_path):
    made = (
        "import sys, tempfile; from frx_graph.service import worker; from frx_graph.service.analysis_job import *\n"
        "def analyse(job): raise KeyError(tempfile.mkdtemp())\n"
        "worker.run_analysis = analyse\n"
        "print(worker.answer_job(AnalysisJob(task='file', folder=sys.argv[1], files=())).error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", made, str(tmp_path)], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.startswith(f"KeyError: '{tmp_path / TEMPORARY}/")


@pytest.mark.usefixtures("worker")
def test_a_ledger_that_does_not_answer_does_not_stop_the_others(served, monkeypatch):
    answering = threading.Event()
    monkeypatch.setattr(DecisionBook, "read_last", lambda *_, **__: answering.wait(60) and Decisions((), {}, 0, None))
    url = served()
    waiting = [_begun(url, 0, b"", path="/ledger/events", method="GET") for _ in range(60)]
    try:
        assert httpx.post(f"{url}/analyze", files={"file": ("a.ptx", b"x" * (2 << 20))}).status_code == 200
    finally:
        answering.set()
        for one in waiting:
            one.close()


@pytest.mark.usefixtures("worker")
def test_a_fault_of_the_service_is_answered_and_logged_as_all_else_is(served, monkeypatch):
    def broken(*_):
        raise KeyError("what was sent")

    monkeypatch.setattr(JobFolder, "add_text", broken)
    log: list[str] = []
    answer = ask(served(log=log.append))
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    # Its own line comes when the answer has gone.
    _wait_until(lambda: sum("healthz" not in line for line in log) == 2)
    fault, line = map(json.loads, [line for line in log if "healthz" not in line])
    assert (line["status"], line["request"]) == (500, answer.headers["x-request-id"])
    assert (fault["request"], fault["fault"]) == (line["request"], "KeyError")
    assert Path(fault["where"][-1].rpartition(":")[0]) == Path(__file__)
    assert "what was sent" not in answer.text + "".join(log)


@pytest.mark.usefixtures("worker")
def test_too_large_body_is_reported_as_html_to_browsers(served):
    url = served(upload_bytes=1000)
    sent = {"files": {"file": ("a.ptx", b"x" * 2000)}, "headers": {"Accept": "text/html"}}
    answer = httpx.post(f"{url}/report", **sent)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert "larger than 1,000 bytes" in answer.text


def test_fields_that_are_not_known_are_one_error(client):
    names = ",".join(f'"a{number}":0' for number in range(300_000))
    answer = client.post(
        "/ptx/analyze", content=f'{{"ptx_text":"x",{names}}}', headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    assert "there is no field 'a0'" in answer.json()["detail"]
    nested = client.post("/compare", json={"a": {"cuda_source": "x", "y": 1}, "b": {"cuda_source": "x"}})
    assert "a: Value error, there is no field 'y'" in nested.json()["detail"]


@pytest.mark.parametrize("charset", ["unicode_escape", "undefined", "punycode", "utf-16", "utf-7"])
def test_a_form_is_in_utf_8(client, charset):
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="\\ud800"\r\n\r\nx\r\n--b--\r\n'
    kind = f"multipart/form-data; boundary=b; charset={charset}"
    answer = client.post("/analyze", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 422
    assert "UTF-8" in answer.json()["detail"]


def test_service_start_failure_is_reported(monkeypatch, capsys, tmp_path):
    script = tmp_path / "broken_worker.py"
    script.write_text("import sys; sys.exit('no torch')\n")
    monkeypatch.setattr(worker_pool, "WORKER", (str(script),))
    assert run(["serve", "--port", "0"]) == 2
    assert "the service could not start" in capsys.readouterr().err


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _begun(
    url: str,
    length: int,
    beginning: bytes,
    *,
    path: str = "/ptx/analyze",
    kind: str = "application/json",
    method: str = "POST",
) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.sendall(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n\r\n".encode()
        + beginning
    )
    return connection

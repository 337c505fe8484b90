"""An arm in a process of its own: what it answers, how it fails, and that nothing of it is left."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from frx_graph.support.supervisor.family import ProcessFamily
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trial_worker import launch
from frx_graph.trials import arm_process
from frx_graph.trials.arm_connection import connect_to_parent
from frx_graph.trials.arm_process import ArmError, ArmProcess, Cause, Limits

ANSWER = """
from frx_graph.trials.arm_connection import connect_to_parent
import os, sys, time, signal, subprocess
arm = connect_to_parent()
for question in arm:
    what = question["do"]
    if what == "echo":
        arm.answer({"said": question["text"], "pid": os.getpid()})
    exec(question.get("code", ""))
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., ArmProcess]:
    program = tmp_path / "arm.py"
    program.write_text(ANSWER)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(limits: Limits | None = None) -> ArmProcess:
        return ArmProcess([sys.executable, str(program)], limits=limits, environment=environment)

    return run


def do(arm: ArmProcess, code: str, seconds: float = 30.0) -> dict[str, object]:
    return arm.ask({"do": "code", "code": textwrap.dedent(code)}, seconds=seconds)


def failing(arm: ArmProcess, code: str, seconds: float = 30.0) -> ArmError:
    with pytest.raises(ArmError) as failure:
        do(arm, code, seconds)
    assert not psutil.pid_exists(arm.pid)
    return failure.value


def test_questions_and_answers(start) -> None:
    with start() as arm:
        first = arm.ask({"do": "echo", "text": "a\nb"}, seconds=30)
        second = arm.ask({"do": "echo", "text": "x" * 1_000_000}, seconds=30)
        assert first["said"] == "a\nb"
        assert len(second["said"]) == 1_000_000
        assert first["pid"] == second["pid"] != os.getpid()
    assert not psutil.pid_exists(first["pid"])


@pytest.mark.parametrize("text", ["early", "x" * 1_000_000])
def test_a_question_that_was_begun_is_answered_once(start, tmp_path: Path, text: str) -> None:
    question = {"do": "echo", "text": text, "code": f"open({str(tmp_path / 'log')!r}, 'a').write('once ')"}
    with start() as arm:
        arm.begin(question)
        assert arm.ask(question, seconds=30)["said"] == text
        assert arm.ask({"do": "echo", "text": "later"}, seconds=30)["said"] == "later"
    assert (tmp_path / "log").read_text() == "once "


def test_an_arm_that_has_begun_works_before_it_is_asked(start, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    question = {"do": "code", "code": f"open({str(sign)!r}, 'w').close(); arm.answer({{}})"}
    with start() as arm:
        arm.begin(question)
        deadline = time.monotonic() + 30
        while not sign.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert arm.ask(question, seconds=30) == {}


def test_an_arm_that_died_of_what_it_has_begun_fails_when_asked(start) -> None:
    question = {"do": "code", "code": "os._exit(3)"}
    with start() as arm:
        arm.begin(question)
        with pytest.raises(ArmError, match="exit code 3"):
            arm.ask(question, seconds=30)


def test_printed_text_is_not_an_answer(start) -> None:
    with start() as arm:
        answer = do(arm, """print('{"said": "printed"}', flush=True); arm.answer({"said": "answered"})""")
        assert answer == {"said": "answered"}
    assert "printed" in arm.output


def test_a_segmentation_fault(start) -> None:
    failure = failing(start(), "import ctypes; print('before', flush=True); ctypes.string_at(0)")
    assert failure.cause is Cause.CRASHED
    assert "SIGSEGV" in failure.message
    assert "before" in failure.output


def test_an_exit(start) -> None:
    failure = failing(start(), "os._exit(3)")
    assert failure.cause is Cause.EXITED
    assert "3" in failure.message


def test_error_answered_by_the_arm_is_raised(start) -> None:
    failure = failing(start(), "arm.answer({'error': 'ValueError: no'})")
    assert (failure.cause, failure.message) == (Cause.RAISED, "ValueError: no")
    failure = failing(start(), "arm.answer({'error': 'no memory', 'out_of_memory': True})")
    assert failure.cause is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize("line", [b"[1]", b"nothing", b"\xff", b"{", b"[" * 100_000])
def test_invalid_answer_is_an_error(start, line: bytes) -> None:
    failure = failing(start(), f"arm._answers.write({line!r} + b'\\n'); arm._answers.flush()")
    assert failure.cause is Cause.RAISED
    assert "invalid answer" in failure.message


def test_an_answer_that_does_not_end(start) -> None:
    code = "while True: arm._answers.write(b'x' * 10_000)"
    assert failing(start(Limits(output_bytes=1_000_000)), code).cause is Cause.FLOODED


def test_an_arm_that_does_not_read_is_given_up_too(start, tmp_path: Path) -> None:
    later = tmp_path / "later"
    with start() as arm:
        do(arm, f"arm.answer({{}}); time.sleep(20); open({str(later)!r}, 'w')")
        with pytest.raises(ArmError) as failure:
            arm.ask({"do": "echo", "text": "x" * 1_000_000}, seconds=0.5)
    assert failure.value.cause is Cause.TIMED_OUT
    assert not later.exists()


def test_one_that_closes_its_connection_and_lives_on_is_not_waited_for(start, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    ends = ProcessFamily.wait_for_leader

    def noted(family: ProcessFamily, seconds: float) -> bool:
        waited.append(seconds)
        return ends(family, seconds)

    monkeypatch.setattr(ProcessFamily, "wait_for_leader", noted)
    failure = failing(start(), "arm._answers.close()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)")
    assert (failure.cause, failure.message) == (Cause.EXITED, "an arm closed its connection")
    assert sum(waited) <= 1.0


def test_sigkill_is_reported_as_killed(start) -> None:
    failure = failing(start(), "os.kill(os.getpid(), signal.SIGKILL)")
    assert failure.cause is Cause.KILLED
    assert "SIGKILL" in failure.message


def test_a_hang_that_ignores_sigterm(start) -> None:
    failure = failing(start(), "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass", seconds=1.0)
    assert failure.cause is Cause.TIMED_OUT


def test_a_flood(start) -> None:
    failure = failing(start(Limits(output_bytes=10_000_000)), "while True: print('x' * 10_000)")
    assert failure.cause is Cause.FLOODED
    assert len(failure.output) < 20_000


def test_too_much_memory(start) -> None:
    limits = Limits(memory_bytes=300 * 2**20)
    failure = failing(start(limits), "hoard = [bytearray(b'x') * (600 * 2**20)]\ntime.sleep(60)")
    assert failure.cause is Cause.OUT_OF_MEMORY


def test_what_its_forked_processes_share_is_used_once(start) -> None:
    code = """
    hoard = bytearray(b"x") * (200 * 2**20)
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            time.sleep(600)
        children.append(child)
    time.sleep(1)
    arm.answer({"children": children})
    """
    with start(Limits(memory_bytes=400 * 2**20)) as arm:
        assert len(do(arm, code)["children"]) == 3


def test_how_much_is_shared_is_asked_again_where_more_has_come_or_after_a_while(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up the arm, which is being timed."""
    resident, own, asked = 0, 100, 0

    def own_bytes(_: ProcessFamily) -> int:
        nonlocal asked
        asked += 1
        return own

    monkeypatch.setattr(ProcessFamily, "measure_memory", lambda _: resident)
    monkeypatch.setattr(ProcessFamily, "measure_own_memory", own_bytes)
    monkeypatch.setattr(arm_process, "_SHARED_SECONDS", 600.0)
    with start(Limits(memory_bytes=400)) as arm:
        for more, times in ((700, 1), (300, 1), (1, 2), (300, 2), (1, 3)):
            resident += more
            do(arm, "time.sleep(0.3); arm.answer({})")
            assert asked == times
        own = 401
        do(arm, "time.sleep(0.3); arm.answer({})")
        monkeypatch.setattr(arm_process, "_SHARED_SECONDS", 0.0)
        assert failing(arm, "time.sleep(60)").cause is Cause.OUT_OF_MEMORY
    assert asked == 4


def test_error_quotes_the_last_output(start) -> None:
    printed = "print('before'); print('\\x1b[31mone\\n\\n\\x1b]0;two\\x07\\n\\u202e3', flush=True)"
    failure = failing(start(), f"{printed}; os._exit(3)")
    assert failure.message.endswith("exit code 3 before it answered; it has printed last: one | ]0;two | 3")
    failure = failing(start(), "raise ModuleNotFoundError('no module named x')")
    assert failure.message.endswith("ModuleNotFoundError: no module named x")
    failure = failing(start(), "print('x' * 1000, flush=True); os._exit(3)")
    assert failure.message.endswith(f": {'x' * 159}…")
    failure = failing(start(), "os._exit(3)")
    assert failure.message.endswith("before it answered")


def test_arm_that_reports_its_error_is_not_quoted(start) -> None:
    failure = failing(start(), "print('before', flush=True); arm.answer({'error': 'boom'})")
    assert (failure.message, failure.output) == ("boom", "before\n")


def test_child_processes_end_with_the_arm(start) -> None:
    """Also a process that has left its group, and one whose parent has gone."""
    code = """
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    shell = subprocess.Popen(["sh", "-c", "sleep 601 & echo $!"], stdout=subprocess.PIPE, text=True)
    arm.answer({"started": [child.pid, int(shell.stdout.readline())]})
    """
    with start() as arm:
        started = do(arm, code)["started"]
        assert all(psutil.pid_exists(pid) for pid in started)
    assert not any(_runs(pid) for pid in started)


@pytest.mark.parametrize("arm_ends", [False, True])
def test_process_that_left_session_and_parent_ends_too(start, tmp_path: Path, arm_ends: bool) -> None:
    written = tmp_path / "pid"
    code = f"""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 100)
            os.execvp("sh", ["sh", "-c", "echo $$ > {written}.part; mv {written}.part {written}; exec sleep 602"])
        os._exit(0)
    os.wait()
    while not os.path.exists({str(written)!r}):
        time.sleep(0.01)
    """
    with start() as arm:
        if arm_ends:
            failing(arm, code + "os._exit(3)")
        else:
            do(arm, code + "arm.answer({})")
            assert _runs(int(written.read_text()))
    assert not _runs(int(written.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such file elsewhere")
def test_the_kernel_ends_it_before_others(start) -> None:
    code = """
    child = subprocess.run(["cat", "/proc/self/oom_score_adj"], capture_output=True, text=True)
    arm.answer({"own": open("/proc/self/oom_score_adj").read(), "childs": child.stdout})
    """
    with start() as arm:
        assert do(arm, code) == {"own": "1000\n", "childs": "1000\n"}


def test_an_arm_has_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than torch takes to be imported."""
    monkeypatch.setattr(launch, "get_available_memory", lambda: 50 * 2**20)
    question = {
        "ask": "load",
        "workload": {"kind": "graph", "folder": "-"},
        "train": False,
        "inner": "eager",
        "seed": 0,
    }
    with launch.start_arm() as arm, pytest.raises(ArmError) as failure:
        arm.ask(question, seconds=60)
    assert failure.value.cause is Cause.OUT_OF_MEMORY
    assert "may use 40" in failure.value.message


def test_arm_ends_when_its_parent_is_killed(start, tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import sys, time\n"
        "from frx_graph.trials.arm_process import ArmProcess\n"
        f"arm = ArmProcess([sys.executable, {str(tmp_path / 'arm.py')!r}])\n"
        "print(arm.ask({'do': 'echo', 'text': ''}, seconds=60)['pid'], flush=True)\n"
        "arm.ask({'do': 'code', 'code': 'while True: pass'}, seconds=60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        arm = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not _runs(arm):
            break
        time.sleep(0.05)
    assert not _runs(arm)


@pytest.mark.integration
def test_arm_ends_if_its_parent_was_killed_before_it_was_ready(tmp_path: Path) -> None:
    """What was asked for waits in the pipe, and must not be answered to nobody."""
    (tmp_path / "arm.py").write_text(f"import time\ntime.sleep(3)\n{ANSWER}")
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import sys, time\n"
        "from frx_graph.trials.arm_process import ArmProcess\n"
        f"arm = ArmProcess([sys.executable, {str(tmp_path / 'arm.py')!r}])\n"
        "print(arm.pid, flush=True)\n"
        "arm.ask({'do': 'code', 'code': 'while True: pass'}, seconds=60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        arm = int(process.stdout.readline())
        time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
    assert _runs(arm)
    for _ in range(300):
        if not _runs(arm):
            break
        time.sleep(0.05)
    assert not _runs(arm)


def test_an_arm_is_bound_before_it_imports_torch() -> None:
    program = "import sys, frx_graph.trial_worker.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **extend_pythonpath()})


def test_what_cannot_be_started() -> None:
    with pytest.raises(ArmError, match="cannot be started") as failure:
        ArmProcess(["/no/such/program"])
    assert failure.value.cause is Cause.NOT_STARTED


def no_more_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([os.pipe()])

    def pipe() -> tuple[int, int]:
        for one in made:
            return one
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)


def no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", raising(BlockingIOError(errno.EAGAIN, "Try again")))


def gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "Process", raising(psutil.NoSuchProcess(1)))


def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("fail", [no_more_pipes, no_more_processes, gone_at_once, no_more_threads])
def test_one_that_cannot_be_started_leaves_nothing(start, fail: Callable[[pytest.MonkeyPatch], None]) -> None:
    own = psutil.Process()
    children, descriptors = own.children(), own.num_fds()
    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(ArmError) as failure:
        fail(monkeypatch)
        start()
    assert failure.value.cause is Cause.NOT_STARTED
    assert own.children() == children
    assert own.num_fds() == descriptors


def test_stopping_twice_is_stopping_once(start) -> None:
    arm = start()
    arm.stop()
    arm.stop()
    assert not psutil.pid_exists(arm.pid)


def test_ctrl_c_while_it_is_stopped_waits_until_it_is(start, monkeypatch: pytest.MonkeyPatch) -> None:
    arm = start()
    do(arm, "signal.signal(signal.SIGTERM, signal.SIG_IGN); arm.answer({})")
    interrupts = iter([KeyboardInterrupt, KeyboardInterrupt])
    ends = ProcessFamily.wait_for_leader

    def interrupted(family: ProcessFamily, seconds: float) -> bool:
        for interrupt in interrupts:
            raise interrupt
        return ends(family, seconds)

    monkeypatch.setattr(ProcessFamily, "wait_for_leader", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arm.stop()
    assert not psutil.pid_exists(arm.pid)


def test_unreferenced_arm_is_ended(start) -> None:
    arm = start()
    pid = do(arm, "arm.answer({'pid': os.getpid()})")["pid"]
    descriptors = psutil.Process().num_fds()
    del arm
    gc.collect()
    assert not psutil.pid_exists(pid)
    assert psutil.Process().num_fds() < descriptors


def test_non_arm_process_has_no_connection() -> None:
    with pytest.raises(RuntimeError, match="not an arm"):
        connect_to_parent()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

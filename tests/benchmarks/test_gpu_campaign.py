"""The campaign goes on where it was ended, and says what it lacks. One test runs all of it, on the CPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_campaign
import psutil
import pytest
from gpu_campaign import (
    DONE,
    FAILED,
    NO_TIME,
    NOT_HERE,
    TOO_LONG,
    WAITING,
    Campaign,
    Ended,
    Step,
    describe_missing,
    run_campaign,
)

BENCHMARKS = Path(gpu_campaign.__file__).parent
MACHINE: dict[str, Any] = {"device": "a GPU", "torch": "2.15", "has": {"ncu": False}}
OPTIONS = {"device": "cpu", "small": True}


class Machine:
    """Runs no process, and answers as told. Its clock goes on by a minute with each step."""

    def __init__(self, answers: dict[str, Ended]) -> None:
        self.answers = answers
        self.ran: list[str] = []
        self.now = 0.0

    def run(self, command: Sequence[str], limit_seconds: float) -> Ended:
        assert limit_seconds > 0
        self.ran.append(command[0])
        self.now += 60
        return self.answers[command[0]]

    def clock(self) -> float:
        return self.now


def end(code: int | None = 0, output: bytes = b"{}") -> Ended:
    return Ended(code, 1.0, output, b"said")


def make_step(name: str, **options: Any) -> Step:
    return Step(name, (name,), 100, **options)


def run(
    out: Path, machine: Machine, steps: Sequence[Step], seconds: float = 1000, again: Sequence[str] = ()
) -> dict[str, str]:
    """Run a campaign, and return the status of each step."""
    campaign = Campaign(out, MACHINE, OPTIONS)
    run_campaign(
        campaign,
        steps,
        MACHINE,
        seconds=seconds,
        again=again,
        run=machine.run,
        say=lambda _: None,
        clock=machine.clock,
    )
    return {step.name: campaign.get_status(step.name) for step in steps}


def test_each_step_has_a_status_and_its_result(tmp_path: Path) -> None:
    steps = [
        make_step("good"),
        make_step("bad"),
        make_step("finds", finds=True),
        make_step("crashes", finds=True),
        make_step("ncu", needs=("ncu",)),
    ]
    answers = {"good": end(output=b'{"a": 1}'), "bad": end(1, b"no JSON"), "finds": end(1), "crashes": end(1, b"")}
    # A traceback ends with exit code 1, too, but without a result.
    wanted = {"good": DONE, "bad": FAILED, "finds": DONE, "crashes": FAILED, "ncu": NOT_HERE}
    assert run(tmp_path, Machine(answers), steps) == wanted
    assert json.loads((tmp_path / "good.json").read_text()) == {"a": 1}
    state = json.loads((tmp_path / "campaign.json").read_text())
    assert state["machine"] == MACHINE
    assert (state["steps"]["bad"]["exit_code"], state["steps"]["bad"]["errors"]) == (1, "said")
    assert state["steps"]["bad"]["result"] == ""
    assert (tmp_path / "bad.log").read_text() == "saidno JSON"


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    steps = [make_step("first"), make_step("second"), make_step("third")]
    machine = Machine({"first": end(), "second": end(2), "third": end()})
    # The third has no time left.
    assert run(tmp_path, machine, steps, seconds=130) == {"first": DONE, "second": FAILED, "third": NO_TIME}
    machine.answers["second"] = end()
    assert run(tmp_path, machine, steps)["third"] == DONE
    assert machine.ran == ["first", "second", "third"]
    assert run(tmp_path, machine, steps, again=["second"])["second"] == DONE
    assert machine.ran == ["first", "second", "third", "second"]


def test_a_step_that_the_campaigns_time_ended_is_run_again(tmp_path: Path) -> None:
    machine = Machine({"long": end(None, b"")})
    assert run(tmp_path, machine, [make_step("long")], seconds=50) == {"long": NO_TIME}
    # Its own limit ends it, and would again.
    assert run(tmp_path, machine, [make_step("long")]) == {"long": TOO_LONG}
    assert run(tmp_path, machine, [make_step("long")]) == {"long": TOO_LONG}
    assert machine.ran == ["long"] * 2


def test_a_step_waits_for_the_one_whose_result_it_reads(tmp_path: Path) -> None:
    steps = [make_step("probe"), make_step("contract", after="probe")]
    machine = Machine({"probe": end(2), "contract": end()})
    assert run(tmp_path, machine, steps) == {"probe": FAILED, "contract": WAITING}
    machine.answers["probe"] = end()
    assert run(tmp_path, machine, steps, again=["probe"]) == {"probe": DONE, "contract": DONE}


def test_another_machine_needs_another_folder(tmp_path: Path) -> None:
    Campaign(tmp_path, MACHINE, OPTIONS).note("first", DONE)
    with pytest.raises(ValueError, match="choose another folder"):
        Campaign(tmp_path, {**MACHINE, "torch": "2.16"}, OPTIONS)
    # What was installed since is the same machine.
    Campaign(tmp_path, {**MACHINE, "has": {"ncu": True}}, OPTIONS)


def test_missing_packages_are_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["pytest>=8", "numpy", "not-there>=2", "pydantic>=99"]\n'
        "[project.optional-dependencies]\ntorch = []\n"
    )
    missing = gpu_campaign.find_missing(tmp_path)
    assert missing == ["not-there>=2", "pydantic>=99"]
    assert "pip download --only-binary=:all: -d wheels 'not-there>=2' 'pydantic>=99'" in describe_missing(missing)
    assert "--no-build-isolation --editable ." in describe_missing([gpu_campaign.CHECKOUT])
    assert gpu_campaign.find_missing() == []


KILLED = """\
import sys
from pathlib import Path
sys.path[:0] = [{benchmarks!r}, {root!r}]
from gpu_campaign import Campaign, Step, run_campaign

out = Path(sys.argv[1])
count = "import sys; f = open(sys.argv[1], 'a'); f.write('x'); print(1)"
steps = [
    Step("first", (sys.executable, "-c", count, str(out / "first")), 60),
    Step("second", (sys.executable, "-c", f"import time; time.sleep({{sys.argv[2]}}); print(1) # {{out}}"), 60),
    Step("third", (sys.executable, "-c", count, str(out / "third")), 60),
]
machine = {{"has": {{}}}}
run_campaign(Campaign(out, machine, {{}}), steps, machine, seconds=300)
"""


def list_processes(part: str) -> list[int]:
    """The processes in whose command this is."""
    return [one.pid for one in psutil.process_iter(["cmdline"]) if part in " ".join(one.info["cmdline"] or ())]


def test_killed_in_a_step_it_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    script = KILLED.format(benchmarks=str(BENCHMARKS), root=str(BENCHMARKS.parent))
    state = tmp_path / "campaign.json"
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), "60"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if state.exists() and json.loads(state.read_text())["steps"].get("second"):
                break
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert json.loads(state.read_text())["steps"]["second"]["status"] == "running"
    # What it had started ends with it.
    deadline = time.monotonic() + 10
    while (left := list_processes(f"sleep(60); print(1) # {tmp_path}")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    subprocess.run([sys.executable, "-c", script, str(tmp_path), "0"], check=True, stdout=subprocess.DEVNULL)
    steps = json.loads(state.read_text())["steps"]
    assert {name: step["status"] for name, step in steps.items()} == dict.fromkeys(("first", "second", "third"), DONE)
    assert (tmp_path / "first").read_text() == "x"


LEAVES = """
import subprocess, sys, time
quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60) # {out}"], start_new_session=True, **quiet)
time.sleep({seconds})
print(1)
"""


@pytest.mark.parametrize(("seconds", "status"), [(0, DONE), (60, TOO_LONG)])
def test_what_leaves_its_session_ends_with_the_step(seconds: int, status: str, tmp_path: Path) -> None:
    left = LEAVES.format(out=tmp_path, seconds=seconds)
    script = f"""
import sys
sys.path[:0] = [{str(BENCHMARKS)!r}, {str(BENCHMARKS.parent)!r}]
from pathlib import Path
from gpu_campaign import Campaign, Step, run_campaign

machine = {{"has": {{}}}}
steps = [Step("leaves", (sys.executable, "-c", {left!r}), 2)]
run_campaign(Campaign(Path({str(tmp_path)!r}), machine, {{}}), steps, machine, seconds=300)
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    state = json.loads((tmp_path / "campaign.json").read_text())
    assert state["steps"]["leaves"]["status"] == status
    assert not list_processes(f"sleep(60) # {tmp_path}")


def test_every_step_of_a_gpu_exists() -> None:
    for device in ("cuda", "cpu"):
        for small in (False, True):
            steps = gpu_campaign.list_steps(device, small=small)
            assert len({step.name for step in steps}) == len(steps)
            for step in steps:
                scripts = [part for part in step.command if part.endswith(".py")]
                assert all((BENCHMARKS.parent / script).is_file() for script in scripts)


@pytest.mark.integration
def test_all_of_it_on_the_cpu(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "gpu_campaign.py"),
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--small",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    state = json.loads((tmp_path / "campaign.json").read_text())
    status = {name: step["status"] for name, step in state["steps"].items()}
    absent = {name for name, said in status.items() if said == NOT_HERE}
    assert absent == {"absent_gpu", "profile_convolution", "profile_attention", "profile_generated"}
    assert {said for name, said in status.items() if name not in absent} == {DONE}
    assert json.loads((tmp_path / "ranks.json").read_text())["weights_agree"] is True
    compared = json.loads((tmp_path / "contract.json").read_text())
    assert compared["agree"] > 0
    assert json.loads((tmp_path / "accuracy.json").read_text())["broken"] == []

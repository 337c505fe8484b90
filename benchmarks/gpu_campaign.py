"""Find out on a machine with a GPU what only a GPU can tell, the most valuable first.

    python benchmarks/gpu_campaign.py --out DIR [--minutes 25] [--device cuda|cpu] [--small] [--again STEP,STEP]

Every step is a process with a time limit. DIR/campaign.json has the device, the versions and what came of each step; it
is written before and after every step. The same command goes on where a run was ended, at any time: what is done stays,
and long measurements go on from their own files in DIR. Steps that failed or took too long are repeated with `--again`,
from their beginning.

The campaign needs this checkout, installed, with torch 2.11 or later and the packages of pyproject.toml. It uses no
network, and names what is missing. `--small` takes the smallest programs, to try the campaign itself; with the CPU as
`--device` it takes some minutes. Exit code 0: all that can run here is done; 1: a step failed, or there was no time; 2:
something is missing, or DIR is of another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCHEMA = "frx_gpu_campaign_v1"
BUILDER = "setuptools>=77"
"""What installs the checkout where there is no network (`build-system` of pyproject.toml)."""
FOR_STEPS = ("pytest", "hypothesis", "expecttest", "jsonschema", "transformers", "monai")
"""Packages without which some steps are left out."""
_RAISED = re.compile(rb"^[\w.]+(Error|Exception|Interrupt)(:.*)?\Z", re.MULTILINE)
"""Python's last line for a program that an exception ended, with exit code 1."""
POLICY = "time_budget_seconds: 200\n"
"""Trials end by themselves, with what they know, before their step's limit."""
CHECKOUT = "this checkout, installed"
LEAST_SECONDS = 20.0
"""No step is begun with less time."""
DONE, FAILED, RUNNING = "done", "failed", "running"
NO_TIME, TOO_LONG, WAITING, NOT_HERE = "no time", "too long", "waiting", "not here"
"""No time: the campaign's ended. Too long: the step's own limit ended it. Waiting: a step that it needs is not done."""
ENDS_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Linux kills what runs this, and then the command, when the campaign is killed (`PR_SET_PDEATHSIG`)."""
PR_SET_CHILD_SUBREAPER = 36
FRX = (sys.executable, "-m", "frx_graph")
ZOO = "benchmarks/zoo.py"
TESTS = ("measure", "trials", "trial_worker", "capture", "runs/sdk", "cli/test_profile.py", "benchmarks")
"""Rooms with tests that need a GPU."""


@dataclass(frozen=True)
class Step:
    """One process, from the root of the checkout. `{out}` in its command is the campaign's folder. What it prints as
    JSON is kept if it writes no `result` itself. `needs` are keys of what the machine has (`campaign_parts.py`), and
    `after` is the step whose result it reads."""

    name: str
    command: tuple[str, ...]
    seconds: float
    result: str = ""
    needs: tuple[str, ...] = ()
    after: str = ""
    finds: bool = False
    """Exit code 1 with a result is an answer: findings, no promotion, a bound that does not hold."""
    resumes: bool = False
    """It goes on from its own result, so it is begun again if it took too long."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, None if it was stopped for the time, and the end of what it printed."""

    code: int | None
    seconds: float
    output: bytes
    errors: bytes


Run = Callable[[Sequence[str], float], Ended]


def list_steps(device: str, *, small: bool) -> tuple[Step, ...]:
    """Return all steps, the most valuable first."""

    def script(name: str, *options: str) -> tuple[str, ...]:
        return (sys.executable, f"benchmarks/{name}.py", *options)

    def part(name: str, *options: str) -> tuple[str, ...]:
        return script("campaign_parts", name, "--device", device, *options)

    def trial(target: str, *options: str) -> tuple[str, ...]:
        always = ("--device", device, "--json", "--ledger", "{out}/ledger.sqlite3", "--policy", "{out}/policy.yaml")
        return (*FRX, "trial", target, *always, *(("--ignore-load",) if small else ()), *options)

    def versus(name: str, entries: str, seconds: float, *options: str, needs: tuple[str, ...] = ()) -> Step:
        file = f"{name}.json"
        written = ("--json", f"{{out}}/{file}", "--resume")
        chosen = ("--entries", entries, "--device", device, "--inners", "inductor", "--allocations", "default")
        command = script("versus", *chosen, *written, *options, *(("--quick",) if small else ()))
        return Step(name, command, seconds, file, needs, finds=True, resumes=True)

    def profile(name: str) -> Step:
        program = (sys.executable, "benchmarks/campaign_parts.py", name, "--device", device)
        command = (*FRX, "profile", "--json", "--exit-zero", "--out", f"{{out}}/{name}.csv", "--", *program)
        return Step(f"profile_{name}", command, 120, needs=("ncu",))

    only = ("--only", "aten.bmm", "--only", "aten.relu") if small else ()
    tests = ("-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *(f"tests/{room}" for room in TESTS))
    small_program = "benchmarks/small_programs.py:plain_stack"
    declined = "custom_between" if small else "unet_plain,shufflenet,wide_7x7,regnet,mobilenet_v2,unet_3d"
    varied = "custom_between" if small else "unet_plain,shufflenet,mobilenet_v2"
    cells = ("--inners", "inductor", "--dtypes", "autocast", "--dynamic", "dynamic", "--device", device)
    libraries = () if small else ("transformers",)
    arms = "inductor,channels-last,eager channels-last,frx"
    networks = ("resnet18",) if small else ("resnet18", "unet_plain", "vit_small", "attention_contiguous")
    rounds = ("--modes", "inference", "--rounds", "3") if small else ("--modes", "training", "--rounds", "7")
    dtypes = ("--dtypes", "fp32" if small else "bf16,fp32")
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "benchmarks/campaign_parts.py")
    return (
        Step("environment", (*FRX, "doctor", "--json"), 90, finds=True),
        Step("tests", (sys.executable, *tests, "--junitxml", "{out}/tests.xml"), 360, "tests.xml", ("test packages",)),
        Step("probe", (*FRX, "probe", "--device", device, "--output", "{out}/contract.yaml", "--json", *only), 240),
        Step("contract", part("contract", "--path", "{out}/contract.yaml"), 60, after="probe"),
        Step("calibration", part("calibration"), 60),
        Step("absent_gpu", part("absent_gpu", "--path", "{out}/traces"), 240, needs=("GPU", "transformers")),
        Step(
            "accuracy",
            script(
                "advice_accuracy", *networks, "--device", device, "--mode", "inference", "--json", "{out}/accuracy.json"
            ),
            240,
            "accuracy.json",
            ("transformers",),
            finds=True,
        ),
        versus(
            "declined",
            declined,
            300,
            *rounds,
            *dtypes,
            "--arms",
            arms,
            needs=(*libraries, *(() if small else ("monai",))),
        ),
        Step(
            "varied",
            script(
                "zoo_matrix",
                "--entries",
                varied,
                *cells,
                "--json",
                "{out}/varied.json",
                "--retry-died",
            ),
            240,
            "varied.json",
            libraries,
            finds=True,
            resumes=True,
        ),
        Step("equal_arms", trial(small_program, "--aa"), 240, finds=True),
        Step("trial_network", trial(small_program if small else f"{ZOO}:resnet18"), 240, needs=libraries, finds=True),
        *(
            ()
            if small
            else (
                Step("trial_training", trial(f"{ZOO}:unet_plain", "--train"), 240, finds=True),
                Step("trial_attention", trial(f"{ZOO}:attention_contiguous", "--dtype", "bfloat16"), 240, finds=True),
            )
        ),
        *map(profile, ("convolution", "attention", "generated")),
        Step("ranks", (sys.executable, *ranks, "ranks", "--device", device), 120, needs=("two GPUs",)),
        *(() if small else (versus("zoo", "resnet50,vit_small,bert_base", 900, "--arms", arms, needs=libraries),)),
    )


def find_missing(root: Path = ROOT) -> list[str]:
    """Return the packages that the campaign needs and this Python lacks, as pyproject.toml names them, and the project
    itself if it is not installed: torch finds the backend by its entry point."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing = []
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["torch"]):
        name, _, least = re.match(r"([\w.-]+)(?:\[\w+\])?(>=)?([\d.]*)", requirement).groups()  # type: ignore[union-attr]
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
        else:
            missing += [requirement] if _parse_version(found) < _parse_version(least) else []
    backends = importlib.metadata.entry_points(group="torch_dynamo_backends")
    return missing if any(one.name == "frx" for one in backends) else [*missing, CHECKOUT]


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def describe_missing(missing: Sequence[str]) -> str:
    """Return what to do about packages that are missing."""
    lines = [f"missing: {', '.join(missing)}"]
    packages = [one for one in missing if one != CHECKOUT] + ([BUILDER] if CHECKOUT in missing else [])
    if packages:
        quoted = " ".join(f"'{one}'" for one in packages)
        lines += [
            f"Where there is a network: python -m pip download --only-binary=:all: -d wheels {quoted}",
            f"Here: python -m pip install --no-index --find-links wheels {quoted}",
            f"Some steps also need {', '.join(FOR_STEPS)}.",
        ]
    if CHECKOUT in missing:
        lines.append("Here: python -m pip install --no-deps --no-build-isolation --editable .")
    return "\n".join(lines)


def run_process(command: Sequence[str], limit_seconds: float) -> Ended:
    """Run a process from the root of the checkout; its descendants end with it, even in sessions of their own."""
    import psutil

    from frx_graph.support.supervisor.run import RunEnding, run_program

    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    # Tests have time limits of seconds, which a first CUDA call exceeds; CI sets none.
    environment = {**os.environ, "FRX_TIER": "all", "CI": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        linked = (sys.executable, "-c", ENDS_WITH_PARENT, str(os.getpid()), *command)
        started = linked if sys.platform == "linux" else command
        adopt_orphans()
        ran = run_program(started, limit_seconds=limit_seconds, environment=environment)
    finally:
        os.chdir(before)
        for left in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                left.kill()
    code = None if ran.ending is RunEnding.TIMED_OUT else ran.exit_code
    return Ended(code, ran.seconds, ran.output, ran.errors)


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that they are found: workers of torchrun, and what `ncu`
    profiles, have sessions of their own. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Campaign:
    """The state in DIR/campaign.json. What the machine has may change. Raises `ValueError` if it is of another machine
    or of other options."""

    def __init__(self, out: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.out = out
        self._file = out / "campaign.json"
        fresh: dict[str, Any] = {"schema": SCHEMA, "machine": dict(machine), "options": dict(options), "steps": {}}
        self._state: dict[str, Any] = (
            json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else fresh
        )
        before = self._state.get("machine", {}) | {"has": machine["has"]}
        if (self._state.get("schema"), self._state.get("options"), before) != (SCHEMA, dict(options), dict(machine)):
            raise ValueError(f"{self._file} is of another machine or other options: choose another folder")
        self._state["machine"] = before

    def get_status(self, name: str) -> str:
        """Return the status of a step; empty if it has not run."""
        return str(self._state["steps"].get(name, {}).get("status", ""))

    def note(self, name: str, status: str, **facts: Any) -> None:
        """Note the status of a step, on disk."""
        self._state["steps"][name] = {"status": status, **facts}
        written = self._file.with_suffix(".tmp")
        written.write_text(json.dumps(self._state, indent=1) + "\n", encoding="utf-8")
        written.replace(self._file)


def run_step(campaign: Campaign, step: Step, limit_seconds: float, run: Run, *, fresh: bool = False) -> str:
    """Run a step for at most that time, note what came of it, and return its status. `fresh`: from its beginning."""
    command = [part.replace("{out}", str(campaign.out)) for part in step.command]
    campaign.note(step.name, RUNNING, command=command)
    written = campaign.out / (step.result or f"{step.name}.json")
    if fresh or not step.resumes:
        written.unlink(missing_ok=True)
    ended = run(command, limit_seconds)
    (campaign.out / f"{step.name}.log").write_bytes(ended.errors + ended.output)
    if not step.result and _is_json(ended.output):
        kept = written.with_suffix(".tmp")
        kept.write_bytes(ended.output)
        kept.replace(written)
    answered = written.exists()
    found = step.finds and ended.code == 1 and not _RAISED.search(ended.errors.strip())
    good = (ended.code == 0 or found) and answered
    stopped = NO_TIME if limit_seconds < step.seconds or step.resumes else TOO_LONG
    status = stopped if ended.code is None else DONE if good else FAILED
    facts = {"command": command, "seconds": round(ended.seconds, 1), "exit_code": ended.code}
    errors = "" if status == DONE else ended.errors.decode(errors="replace").strip()[-2000:]
    campaign.note(step.name, status, **facts, result=written.name if answered else "", errors=errors)
    return status


def _is_json(output: bytes) -> bool:
    try:
        json.loads(output)
    except ValueError:
        return False
    return True


def run_campaign(
    campaign: Campaign,
    steps: Sequence[Step],
    machine: Mapping[str, Any],
    *,
    seconds: float,
    again: Sequence[str] = (),
    run: Run = run_process,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run the steps that are not done, for `seconds` at most. Return True if all that can run here are done."""
    deadline = clock() + seconds
    complete = True
    for number, step in enumerate(steps, start=1):
        title = f"{number} of {len(steps)}: {step.name}"
        known = campaign.get_status(step.name)
        if known in (DONE, FAILED, TOO_LONG) and step.name not in again:
            say(f"{title}: {known} before")
            complete = complete and known == DONE
            continue
        if lacks := [need for need in step.needs if not machine["has"].get(need)]:
            campaign.note(step.name, NOT_HERE, needs=lacks)
            say(f"{title}: not here, it needs {' and '.join(lacks)}")
            continue
        if step.after and campaign.get_status(step.after) != DONE:
            campaign.note(step.name, WAITING, after=step.after)
            say(f"{title}: after {step.after}, which is not done")
            complete = False
            continue
        left = deadline - clock()
        if left < LEAST_SECONDS:
            if known != NO_TIME:
                campaign.note(step.name, NO_TIME)
            say(f"{title}: no time left")
            complete = False
            continue
        limit = min(step.seconds, left)
        say(f"{title}: at most {limit:.0f} s, {left / 60:.0f} min left")
        status = run_step(campaign, step, limit, run, fresh=step.name in again)
        say(f"{title}: {status}")
        complete = complete and status == DONE
    return complete


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--again", default="", metavar="STEP,STEP")
    asked = parser.parse_args(arguments)
    if missing := find_missing():
        print(describe_missing(missing), file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    began = time.monotonic()
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    script = str(ROOT / "benchmarks" / "campaign_parts.py")
    described = run_process((sys.executable, script, "machine", "--device", asked.device), 120)
    if described.code != 0:
        print(described.errors.decode(errors="replace").strip()[-2000:], file=sys.stderr)
        return 2
    machine = json.loads(described.output)
    steps = list_steps(asked.device, small=asked.small)
    again = tuple(filter(None, asked.again.split(",")))
    again += tuple(step.name for step in steps if step.after in again)
    if unknown := set(again) - {step.name for step in steps}:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(step.name for step in steps)}")
    try:
        campaign = Campaign(out, machine, {"device": asked.device, "small": asked.small})
    except ValueError as error:
        print(f"gpu_campaign: {error}", file=sys.stderr)
        return 2
    (out / "policy.yaml").write_text(POLICY, encoding="utf-8")
    print(f"{machine['device']}, torch {machine['torch']}: {len(steps)} steps, {asked.minutes:g} min at most")
    seconds = 60 * asked.minutes - (time.monotonic() - began)
    complete = run_campaign(campaign, steps, machine, seconds=seconds, again=again)
    print(f"results: {out / 'campaign.json'}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

"""How fast networks run under frx, beside what a user would pick instead: OpenVINO, ONNX Runtime, Inductor.

    pip install '.[zoo,peers]'
    python benchmarks/peers.py [--entries resnet18,bert_base] [--batches 1,8] [--dtypes fp32,bf16] [--threads 1,2]
        [--allocations default,pooled] [--arms NAME,NAME] [--rounds 10] [--block-seconds 0.3] [--profile]
        [--json FILE [--resume]]

Each arm has a process of its own (`peers_arm.py`), and only one of them works at a time: in turns, in an order that is
turned round from round to round (ABBA). Outputs are checked first, against eager and float64, by torch's oracle. A
figure of a round is its fastest step; ratios compare figures of one round, and the median over rounds is reported. Over
1, frx is faster. With several threads, rounds in which a hypervisor ran the processors on cores that share no cache are
left out, and others are run instead. Memory is allocated by glibc with its own settings, and pooled: page faults are up
to a third of a call, and peers pool by themselves.

Beside the times stands the limit: what the arithmetic takes at the processor's peak, and the weights at its bandwidth,
whichever is longer. With `--profile` each network's best arm of frx and best peer are run once more, and report their
time by operator.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import psutil
import torch
from peers_arm import ARMS, Family, Request, write_request
from pydantic import TypeAdapter
from tabulate import tabulate
from torch.utils.flop_counter import FlopCounterMode
from versus_arms import Inner
from versus_case import DTYPES, Case, Mode, build
from versus_timing import geometric_mean, ratio, round_order
from zoo import ZOO, zoo_entry

from frx_graph import __version__
from frx_graph.measure.machine.device_profile_cache import get_device_profile
from frx_graph.measure.machine.disturbance import watch_disturbance
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.measure.machine.processor_distance import FAR, measure_distance
from frx_graph.support.allocator import Allocation

_ARM = Path(__file__).with_name("peers_arm.py")
_PAUSE_SECONDS = 0.1
"""Before a turn, so that the threads of the arm before it no longer spin."""
_SHOWN_OPERATORS = 12
_MOST_TIMES = 4
"""Times as many rounds as asked for that are run, if others are left out."""
_DISTRIBUTIONS = ("torch", "onnxruntime", "openvino", "onnx", "onnxscript", "transformers")


@dataclass(frozen=True, slots=True)
class ArmTimes:
    """One arm of a case: a figure a round. With an `error` it did not run, or computed something wrong."""

    arm: str
    family: Family
    wall_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()
    faults: tuple[float, ...] = ()
    loaded_s: float | None = None
    error: str | None = None
    operators: Mapping[str, float] = field(default_factory=dict)
    """Seconds a call."""


@dataclass(frozen=True, slots=True)
class CaseTimes:
    """All arms of one network. `limit_s` is None where the processor's peak for the type is not known."""

    network: str
    batch: int
    dtype: str
    threads: int
    allocation: Allocation
    arms: tuple[ArmTimes, ...]
    disturbed: int
    limit_s: float | None
    far: int = 0
    """Rounds that were left out, since the processors shared no cache."""

    @property
    def key(self) -> tuple[str, int, str, int, Allocation]:
        return self.network, self.batch, self.dtype, self.threads, self.allocation

    def find_best(self, family: Family) -> ArmTimes | None:
        """Return the fastest arm of a family; None if none was timed."""
        timed = [arm for arm in self.arms if arm.family is family and arm.wall_s]
        return min(timed, key=lambda arm: statistics.median(arm.wall_s), default=None)

    @property
    def over_peer(self) -> float | None:
        """The speed of frx's best arm over the best peer's."""
        frx, peer = self.find_best(Family.FRX), self.find_best(Family.PEER)
        return None if frx is None or peer is None else ratio(peer.wall_s, frx.wall_s).median

    @property
    def over_inductor(self) -> float | None:
        """The speed of frx's best arm over Inductor's default."""
        frx = self.find_best(Family.FRX)
        inductor = next((arm for arm in self.arms if arm.arm == "inductor" and arm.wall_s), None)
        return None if frx is None or inductor is None else ratio(inductor.wall_s, frx.wall_s).median


class ArmProcess:
    """A process that runs one arm."""

    def __init__(self, request: Request) -> None:
        command = [sys.executable, str(_ARM), write_request(request)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def read_cpu_seconds(self) -> float:
        """Return the processor time so far of the process and its threads; 0 if it has ended."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def read_answer(self) -> dict[str, Any]:
        """Return the next answer; one with an error if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": f"ended with {self._process.wait()}"}

    def ask(self, **asked: object) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": f"ended with {self._process.wait()}"}
        return self.read_answer()


def measure_case(request: Request, names: Sequence[str], rounds: int, block_s: float, profile: bool) -> CaseTimes:
    """Load all arms, one after the other, and let them take turns."""
    with contextlib.ExitStack() as stack:
        ready: dict[str, tuple[ArmProcess, dict[str, Any]]] = {}
        errors: dict[str, str] = {}
        for name in names:
            print(f"  loading {name}", file=sys.stderr, flush=True)
            process = stack.enter_context(ArmProcess(_replace_arm(request, name)))
            first = process.read_answer()
            if "error" in first:
                errors[name] = first["error"]
            else:
                ready[name] = process, first
        kept, disturbed, far = _take_turns(ready, rounds, block_s, request.threads) if ready else ([], 0, 0)
    arms = []
    for name in names:
        family = ARMS[name].family
        if name in errors or any("error" in one[name] for one in kept):
            said = errors.get(name) or next(one[name]["error"] for one in kept if "error" in one[name])
            arms.append(ArmTimes(name, family, error=said))
            continue
        own = [one[name] for one in kept]
        arms.append(
            ArmTimes(
                name,
                family,
                tuple(min(one["wall_s"]) for one in own),
                tuple(one["cpu_s"] for one in own),
                tuple(one["faults"] for one in own),
                ready[name][1]["loaded_s"],
            )
        )
    axes = (request.network, request.batch, request.dtype, request.threads, request.allocation)
    found = CaseTimes(*axes, tuple(arms), disturbed, compute_limit(request), far)
    return _profile_best(found, request) if profile else found


def _replace_arm(request: Request, name: str, *, profile: bool = False) -> Request:
    return replace(request, arm=name, profile=profile)


def _take_turns(
    ready: Mapping[str, tuple[ArmProcess, dict[str, Any]]], rounds: int, block_s: float, threads: int
) -> tuple[list[dict[str, dict[str, Any]]], int, int]:
    """Return the answers of each round by arm, how many rounds other programs disturbed, and how many were left out.
    All are kept if the processors never shared a cache."""
    kept: list[tuple[float | None, dict[str, dict[str, Any]]]] = []
    disturbed = 0

    def measure_own() -> float:
        return time.process_time() + sum(process.read_cpu_seconds() for process, _ in ready.values())

    def list_near() -> list[dict[str, dict[str, Any]]]:
        least = min((distance for distance, _ in kept if distance is not None), default=math.inf)
        return [one for distance, one in kept if distance is None or distance < FAR * least or _has_failed(one)]

    for number in range(_MOST_TIMES * rounds):
        answers = {}
        distances = []
        with watch_disturbance(own_clock=measure_own) as was_disturbed:
            for name in round_order(list(ready), number):
                process, first = ready[name]
                distances += [measure_distance()]
                time.sleep(_PAUSE_SECONDS)
                answers[name] = process.ask(steps=max(2, min(100, int(block_s / first["step_s"]))))
            disturbed += was_disturbed()
        known = [distance for distance in (*distances, measure_distance()) if distance is not None]
        kept.append((max(known) if known and threads > 1 else None, answers))
        if _has_failed(answers) or len(list_near()) == rounds:
            break
    near = list_near()
    if len(near) < rounds:
        print(f"  only {len(near)} rounds: the processors shared no cache in the others", file=sys.stderr, flush=True)
    return near, disturbed, len(kept) - len(near)


def _has_failed(answers: Mapping[str, Mapping[str, Any]]) -> bool:
    return any("error" in answer for answer in answers.values())


def _profile_best(found: CaseTimes, request: Request) -> CaseTimes:
    wanted = {arm.arm for family in (Family.FRX, Family.PEER) if (arm := found.find_best(family)) is not None}
    arms = []
    for arm in found.arms:
        operators: dict[str, float] = {}
        if arm.arm in wanted:
            with ArmProcess(_replace_arm(request, arm.arm, profile=True)) as process:
                if "error" not in process.read_answer():
                    operators = process.ask(steps=0).get("operators", {})
        arms.append(replace(arm, operators=operators))
    return replace(found, arms=tuple(arms))


def compute_limit(request: Request) -> float | None:
    """Return the least seconds that a call can take: its arithmetic at the peak of all threads that were calibrated, or
    its weights read once at full bandwidth. Small weights stay in the cache, so only those over 64 MiB count."""
    profile = get_device_profile("cpu")
    peak = profile.peak_flops.get(DTYPES[request.dtype])
    if not peak:
        return None
    case = Case(zoo_entry(request.network), Mode.INFERENCE, request.batch, request.dtype, Inner.INDUCTOR)
    model, calls = build(case, torch.device("cpu"))
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        for args, kwargs in calls:
            model(*args, **kwargs)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    share = request.threads / torch.get_num_threads()
    moved = weights / profile.bandwidth_bytes_per_s if weights > 64 * 2**20 else 0.0
    return max(counter.get_total_flops() / (peak * min(share, 1.0)), moved)


def _print_tables(results: Sequence[CaseTimes]) -> None:
    grouped: dict[tuple[int, str, int, Allocation], list[CaseTimes]] = {}
    for one in results:
        grouped.setdefault((one.batch, one.dtype, one.threads, one.allocation), []).append(one)
    for (batch, dtype, threads, allocation), cases in grouped.items():
        print(f"\nbatch {batch}, {dtype}, {threads} threads, {allocation} memory: milliseconds a call")
        names = list(dict.fromkeys(arm.arm for case in cases for arm in case.arms))
        rows = [
            [
                case.network,
                *(_format_arm(case, name) for name in names),
                _format_ms(case.limit_s),
                _format_ratio(case.over_inductor),
                _format_ratio(case.over_peer),
            ]
            for case in cases
        ]
        print(tabulate(rows, ["network", *names, "limit", "frx/inductor", "frx/peer"], disable_numparse=True))
        for words, values in (
            ("Inductor's default", [case.over_inductor for case in cases]),
            ("the best peer", [case.over_peer for case in cases]),
        ):
            mean = geometric_mean([value for value in values if value])
            print(f"geometric mean of frx over {words}: {_format_ratio(mean)}")
        for case in cases:
            _print_operators(case)
            for arm in case.arms:
                if arm.error:
                    print(f"{case.network}, {arm.arm}: {arm.error}")


def _print_operators(case: CaseTimes) -> None:
    for arm in case.arms:
        if arm.operators:
            print(f"{case.network}, {arm.arm}: milliseconds a call by operator")
            for name, seconds in sorted(arm.operators.items(), key=lambda item: -item[1])[:_SHOWN_OPERATORS]:
                print(f"  {1e3 * seconds:8.3f}  {name}")


def _format_arm(case: CaseTimes, name: str) -> str:
    arm = next((arm for arm in case.arms if arm.arm == name), None)
    return "–" if arm is None or not arm.wall_s else _format_ms(statistics.median(arm.wall_s))


def _format_ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.2f}"


def _format_ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _make_document(results: Sequence[CaseTimes]) -> dict[str, Any]:
    versions = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "frx": __version__,
        "versions": versions,
        "environment": asdict(get_measurement_environment("cpu")),
        "cases": [asdict(case) for case in results],
    }


def _read_results(file: Path) -> list[CaseTimes]:
    return TypeAdapter(list[CaseTimes]).validate_python(json.loads(file.read_text())["cases"])


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=_split, default=[entry.name for entry in ZOO], help="networks of the zoo")
    parser.add_argument("--batches", type=_split, default=["1", "8"])
    parser.add_argument("--dtypes", type=_split, default=["fp32", "bf16"])
    parser.add_argument("--threads", type=_split, default=["1", "2"])
    parser.add_argument("--allocations", type=_split, default=["default", "pooled"])
    parser.add_argument("--arms", type=_split, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--block-seconds", type=float, default=0.3)
    parser.add_argument("--profile", action="store_true", help="time the operators of the best arms, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after each case")
    parser.add_argument("--resume", action="store_true", help="leave out what FILE has")
    given = parser.parse_args(arguments)
    for named, known in ((given.arms, ARMS), (given.dtypes, DTYPES), (given.allocations, set(Allocation))):
        if wrong := sorted(set(named) - set(known)):
            parser.error(f"unknown: {', '.join(wrong)}")
    return given


def _plan(given: argparse.Namespace) -> Iterator[Request]:
    axes = (given.dtypes, given.batches, given.threads, given.allocations, given.entries)
    for dtype, batch, threads, allocation, network in itertools.product(*axes):
        yield Request("", zoo_entry(network).name, int(batch), dtype, int(threads), Allocation(allocation))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    given = _parse(arguments)
    results = _read_results(given.json) if given.resume and given.json and given.json.exists() else []
    known = {case.key for case in results}
    planned = list(_plan(given))
    for number, request in enumerate(planned, start=1):
        key = request.network, request.batch, request.dtype, request.threads, request.allocation
        if key in known:
            continue
        print(f"{number} of {len(planned)}: {', '.join(map(str, key))}", file=sys.stderr, flush=True)
        results.append(measure_case(request, given.arms, given.rounds, given.block_seconds, given.profile))
        if given.json:
            given.json.write_text(json.dumps(_make_document(results), indent=1) + "\n")
    _print_tables(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

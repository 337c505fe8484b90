"""How often trials promote what is no faster, and miss what is: simulated, through the code that decides real trials.

    python benchmarks/false_promotions.py [--trials N] [--policy FILE] [--trace FILE] [--json FILE]
    python benchmarks/false_promotions.py --real N [--policy FILE] [--json FILE]
    python benchmarks/false_promotions.py --record FILE

Three machines: "shared" and "hostile" are simulated, "real" is made of windows of a recording (`--trace`, made with
`--record`: 25 s of convolutions). Every process adds a bias of its own, such that two that run the same program
differ by 2 % (standard deviation of their ratio), as the policies assume. In two rows of each rule they differ by more:
by 8 % ("wide"), and such that about every other process is 30 % slower ("bimodal").

With --real, real trials of programs against themselves are run on this machine instead, some minutes each, until N are
complete, or 2 N were run: none may be promoted, and exit code 1 also says that fewer than N were complete. What was cut
short, as on a busy machine, or failed at a gate, says nothing about promotions. With --json a run may be ended at any
time, and the same command continues it.

Bounds, on each machine: equal arms are never promoted, and in at most 1 % where processes differ by more than is
assumed; a gain of half the minimum is promoted in at most 1 %, and one of 12 % (20 % in one process) found in at least
95 %. Exit code 1 when one is broken. "most" are the steps of a trial that nothing ends early.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from process_bias import ASSUMED, BIMODAL, WIDE, ProcessBias
from step_noise import HOSTILE, SHARED, Noise, recorded
from tabulate import tabulate

from frx_graph.trials.policy import TUNE_POLICY, TrialPolicy, read_policy
from frx_graph.trials.protocol import Protocol, make_protocol
from frx_graph.trials.samples import Block, MeasuredQuad, select_quad
from frx_graph.trials.schedule import Arm, Quad, make_schedule
from frx_graph.trials.verdict import Outcome, Verdict, decide_early, decide_finally

TRACE = Path(__file__).parent / "results" / "convolution-steps.json"
TRIALS = 3000
STEP_SECONDS = 0.01


@dataclass(frozen=True)
class Case:
    """A rule, how much faster the candidate really is, and in what share of trials it must or may be promoted."""

    rule: str
    protocol: Protocol
    speedup: float
    at_most: float = 1.0
    at_least: float = 0.0
    processes: ProcessBias = ASSUMED

    @property
    def true(self) -> str:
        """The gain, and how processes differ, in a few characters."""
        gain = f"+{100 * self.speedup:g} %" if self.speedup else "A/A"
        return f"{gain} {self.processes.name}" if self.processes.name else gain


def cases() -> tuple[Case, ...]:
    """The rules with the gains that they are judged by."""
    tune, default = make_protocol(TUNE_POLICY), make_protocol(TrialPolicy())
    eighth, shared = make_protocol(TrialPolicy(), candidates=8), make_protocol(TrialPolicy(), in_process=True)
    return (
        Case("8 %", tune, 0.0, at_most=0.0),
        Case("8 %", tune, 0.0, at_most=0.01, processes=WIDE),
        Case("8 %", tune, 0.0, at_most=0.01, processes=BIMODAL),
        Case("8 %", tune, 0.04, at_most=0.01),
        Case("8 %", tune, 0.12, at_least=0.95),
        Case("3 %", default, 0.0, at_most=0.0),
        Case("3 %", default, 0.0, at_most=0.01, processes=WIDE),
        Case("3 %", default, 0.0, at_most=0.01, processes=BIMODAL),
        Case("3 %", default, 0.015, at_most=0.01),
        Case("3 %", default, 0.06),
        Case("3 %", default, 0.08),
        Case("3 %", default, 0.12, at_least=0.95),
        Case("3 % of 8", eighth, 0.0, at_most=0.0),
        Case("3 % of 8", eighth, 0.06),
        Case("3 % of 8", eighth, 0.08),
        Case("3 % of 8", eighth, 0.12),
        Case("3+10 %", shared, 0.0, at_most=0.0),
        Case("3+10 %", shared, 0.065, at_most=0.01),
        Case("3+10 %", shared, 0.20, at_least=0.95),
    )


def cases_of(policy: TrialPolicy) -> tuple[Case, ...]:
    """Equal arms and several gains under any policy; only the first is judged."""
    rule, name = make_protocol(policy), f"{100 * policy.minimum_speedup:g} %"
    gains = (0.04, 0.06, 0.08, 0.12)
    return (Case(name, rule, 0.0, at_most=0.0), *(Case(name, rule, gain) for gain in gains))


@dataclass(frozen=True)
class Rates:
    """What became of the trials of one case on one machine."""

    rule: str
    speedup: float
    processes: str
    noise: str
    trials: int
    promoted: int
    rejected: int
    equivalent: int
    inconclusive: int
    mean_steps: float
    most_steps: int
    """That a trial of this rule can take."""


def run_quad(quad: Quad, factors: Iterator[float], seconds: dict[tuple[int, Arm], float], steps: int) -> MeasuredQuad:
    """The next blocks of a simulated machine. `seconds` is a step's undisturbed time, by process pair and arm."""
    blocks = [
        Block(arm, tuple(seconds[quad.pair, arm] * factor for factor in itertools.islice(factors, steps)))
        for arm in quad.arms
    ]
    return MeasuredQuad(quad, (blocks[0], blocks[1], blocks[2], blocks[3]))


def longest(rule: Protocol) -> Protocol:
    """The rule with its extra pairs, if it has any."""
    return rule.extend() or rule


def simulated_trial(
    rule: Protocol, factors: Iterator[float], biases: Sequence[float], speedup: float
) -> tuple[Verdict, int]:
    """The verdict and the steps that it took. `biases`: for each process, how much longer its steps take, logarithm."""
    bias = np.exp(biases).tolist()
    seconds = {}
    for pair in range(longest(rule).process_pairs):
        seconds[pair, Arm.BASELINE] = STEP_SECONDS * bias[2 * pair]
        seconds[pair, Arm.CANDIDATE] = STEP_SECONDS * bias[2 * pair + 1] / (1 + speedup)
    measured: list[MeasuredQuad] = []
    for stage in dict.fromkeys((rule, longest(rule))):
        plan = make_schedule(stage)
        verdict: Verdict | None = None
        while verdict is None and (quad := select_quad(plan, measured, stage)):
            measured.append(run_quad(quad, factors, seconds, stage.steps_per_block))
            verdict = decide_early(measured, stage)
        ended = verdict or decide_finally(measured, stage)
        if ended.outcome is not Outcome.INCONCLUSIVE:
            break
    return ended, 4 * rule.steps_per_block * len(measured)


def rates(case: Case, noise: Noise, trials: int, seed: int = 0) -> Rates:
    """Simulates `trials` trials, each with another order of blocks and other noise."""
    draw = np.random.default_rng(seed)
    found = dict.fromkeys(Outcome, 0)
    steps = 0
    longest_rule = longest(case.protocol)
    factors = noise.factors(trials, longest_rule.steps, draw)
    biases = case.processes.logarithms(trials, 2 * longest_rule.process_pairs, draw)
    for trial in range(trials):
        rule = replace(case.protocol, seed=trial)
        verdict, taken = simulated_trial(rule, iter(factors[trial].tolist()), biases[trial].tolist(), case.speedup)
        found[verdict.outcome] += 1
        steps += taken
    return Rates(
        rule=case.rule,
        speedup=case.speedup,
        processes=case.processes.name,
        noise=noise.name,
        trials=trials,
        promoted=found[Outcome.PROMOTE],
        rejected=found[Outcome.REJECT],
        equivalent=found[Outcome.EQUIVALENT],
        inconclusive=found[Outcome.INCONCLUSIVE],
        mean_steps=steps / trials,
        most_steps=longest_rule.steps,
    )


def broken_bounds(judged: Sequence[tuple[Case, Rates]]) -> list[str]:
    """A line for each bound that does not hold."""
    broken = []
    for case, seen in judged:
        share = seen.promoted / seen.trials
        if not case.at_least <= share <= case.at_most:
            bound = f"at most {case.at_most:.0%}" if share > case.at_most else f"at least {case.at_least:.0%}"
            broken.append(
                f"{case.rule}, true {case.true}, {seen.noise}: promoted {seen.promoted} of {seen.trials}, bound {bound}"
            )
    return broken


def table(judged: Sequence[tuple[Case, Rates]], machines: Sequence[str]) -> str:
    """A row for each case, a column for each machine: promoted in percent, and mean steps."""
    rows = []
    for case, group in itertools.groupby(judged, key=lambda pair: pair[0]):
        seen = {rate.noise: rate for _, rate in group}
        rows.append(
            [
                case.rule,
                case.true,
                *(f"{100 * rate.promoted / rate.trials:.2f} ({rate.mean_steps:.0f})" for rate in seen.values()),
                f"<= {case.at_most:.0%}" if case.at_most < 1 else f">= {case.at_least:.0%}" if case.at_least else "",
                longest(case.protocol).steps,
            ]
        )
    headers = ["rule", "true", *machines, "bound", "most"]
    align = ("left", "left", *["right"] * (len(headers) - 2))
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=align)


def _real(count: int, policy: TrialPolicy, file: Path | None) -> int:
    from real_trials import read_trials, real_trials  # imports torch, as the next does

    from frx_graph.measure.machine.measurement_environment import get_measurement_environment

    environment = asdict(get_measurement_environment("cpu"))
    found = read_trials(file, environment) if file else []
    for trial in real_trials(count, policy, tuple(found)):
        found.append(trial)
        if file:
            document = {"environment": environment, "trials": [asdict(one) for one in found]}
            file.write_text(json.dumps(document, indent=2) + "\n")
    rows = [
        (
            one.target,
            one.train,
            one.inner,
            one.outcome,
            f"{one.ratio:.3f}" if one.ratio else "-",
            " ".join(f"{pair:.2f}" for pair in one.pairs),
            one.void,
            one.complete,
        )
        for one in found
    ]
    print(tabulate(rows, headers=["target", "train", "inner", "outcome", "ratio", "pairs", "void", "complete"]))
    promoted = sum(one.outcome is Outcome.PROMOTE for one in found)
    complete = sum(one.complete for one in found)
    print(f"{promoted} of {complete} complete trials promoted; {len(found) - complete} more were cut short or failed")
    return 1 if promoted or complete < max(1, count) else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS, metavar="N", help=f"for each row and machine ({TRIALS})")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="simulate trials under this policy instead")
    parser.add_argument("--trace", type=Path, default=TRACE, metavar="FILE", help="recorded step times of a machine")
    parser.add_argument(
        "--real", type=int, metavar="N", help="run real trials of equal arms instead, until so many are complete"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="record such a trace here, in 25 s, and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    given = parser.parse_args(arguments)
    if given.trials < 1:
        parser.error("--trials must be at least 1")
    if given.record:
        from record_steps import record  # imports torch, which takes longer than the rest

        record(given.record)
        return 0
    if given.real is not None:
        return _real(given.real, read_policy(given.policy) if given.policy else TrialPolicy(), given.json)
    machines = (SHARED, HOSTILE, recorded(given.trace))
    simulated = cases_of(read_policy(given.policy)) if given.policy else cases()
    judged = [(case, rates(case, noise, given.trials)) for case in simulated for noise in machines]
    print(f"Promoted in % of {given.trials} trials (mean steps of both arms) on three machines;")
    print("3 % of 8: one of eight candidates; 3+10 %: both arms in one process, which asks for more than the minimum\n")
    print(table(judged, [noise.name for noise in machines]))
    broken = broken_bounds(judged)
    if given.json:
        document = {"rates": [asdict(seen) for _, seen in judged], "broken": broken}
        given.json.write_text(json.dumps(document, indent=2) + "\n")
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

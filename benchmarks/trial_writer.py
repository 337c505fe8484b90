"""A process that tries one program on and on, with real arms, and keeps what each trial has decided: to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from frx_graph.autopilot.trial_decisions import decide_graph
from frx_graph.ledger.decision import Decision, make_process_author
from frx_graph.records import Candidate
from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.trial_document import build_trial_document
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs

GONE_SECONDS = 5.0
"""No process of a trial may be left so long after the trial's own was killed."""

MARK = "FRX_KILLED_TRIAL"
_PROGRAM = """
import torch

def build():
    return torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),)
"""
_POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3, steps_per_block=1, void_quads_allowed=2)
_CANDIDATE = Candidate("propagate_layout", "0" * 16, ("linear",))
"""What the decisions are about; the baseline is tried against itself."""


def try_until_killed(mark: str, folder: Path, keep: Callable[[tuple[Decision, ...]], None]) -> None:
    """Propose, try, decide, all over again; `keep` returns when its decisions are acknowledged. All processes that this
    starts have the `mark`; what they leave lies in `folder`."""
    os.environ[MARK] = mark
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    (folder / "program.py").write_text(_PROGRAM)
    base = Load(TargetWorkload(f"{folder / 'program.py'}:build"), train=False, inner="eager", seed=0)
    while True:
        run = run_trial(Programs(base, base), _POLICY, start_arm, pause=lambda _: None)
        assert run.environment is not None
        document = build_trial_document(
            run,
            target="program.py:build",
            train=False,
            inner="eager",
            candidates=(_CANDIDATE,),
            policy=_POLICY,
            decision="recorded by the benchmark",
        )
        keep(
            decide_graph(
                run.signatures[0],
                (_CANDIDATE,),
                run.verdict,
                environment=run.environment,
                policy=_POLICY,
                document=json.dumps(to_json(document), allow_nan=False),
                by=make_process_author("benchmark"),
            )
        )


def marked(mark: str, *, but: int) -> list[int]:
    """The processes that have the mark, zombies and the one with the id `but` left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != but and process.environ().get(MARK) == mark and process.status() != "zombie":
                found.append(process.pid)
    return found


def seconds_until_gone(mark: str, *, but: int = 0) -> float | None:
    """Until no process has the mark any more, that with the id `but` left out; None where some are left after
    `GONE_SECONDS`."""
    begun = time.monotonic()
    while marked(mark, but=but):
        if time.monotonic() > begun + GONE_SECONDS:
            return None
        time.sleep(0.02)
    return time.monotonic() - begun

"""The long run of the fuzzer: what it counts, what it prints, when it fails."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import fuzz_rewrites
import pytest
from fuzz_rewrites import Summary, kind_of_fault, main
from random_programs import random_program
from rewrite_oracle import Outcome, Verdict


@pytest.mark.integration
def test_a_short_run_counts_every_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "out.json"
    assert main(["--examples", "5", "--max-lines", "4", "--json", str(written)]) == 0
    document = json.loads(written.read_text())
    assert document["examples"] == sum(document["outcomes"].values()) == 5
    assert document["faults"] == {}
    # On a busy machine lines of progress come before it.
    assert any(line.startswith("5 programs: ") for line in capsys.readouterr().out.splitlines())


def test_faults_of_one_kind_are_one_fault() -> None:
    summary = Summary()
    for seed, problem in enumerate(["value of output 0 in step 0", "value of output 1 in step 0", "raises"]):
        summary.note(seed, Verdict(Outcome.WRONG, (problem, "RuntimeError: 7 and 8")))
    assert summary.faults == {"value of output # in step #": [0, 1], "RuntimeError: # and #": [2]}
    assert summary.failed


def test_refusals_are_counted_by_reason_and_fail_nothing() -> None:
    summary = Summary()
    for node in ("slice_1", "convolution_12"):
        refused = Counter({f"propagate_layout: {node} has gaps": 1})
        summary.note(0, Verdict(Outcome.REFUSED, (), refused))
    assert list(summary.refusals.values()) == [2]
    assert not summary.failed


def test_many_programs_of_which_none_is_rewritten_show_nothing() -> None:
    summary = Summary()
    for seed in range(fuzz_rewrites.MANY):
        assert not summary.failed
        summary.note(seed, Verdict(Outcome.IDLE))
    assert summary.failed
    summary.note(seed, Verdict(Outcome.OK, applied=Counter({"reuse_memory": 1})))
    assert not summary.failed


def test_a_wrong_program_is_printed_cut_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Verdict(Outcome.WRONG, ("value of output 0 in step 0",))

    def planted(given: object, summary: Summary) -> None:
        summary.note(3, wrong)

    monkeypatch.setattr(fuzz_rewrites, "run", planted)
    monkeypatch.setattr(fuzz_rewrites, "check_program", lambda *_args, **_how: wrong)
    assert main(["--examples", "1"]) == 1
    printed = capsys.readouterr().out
    assert "WRONG: value of output # in step #, seeds [3]" in printed
    assert "class Program(nn.Module):" in printed
    assert len(printed.splitlines()) < len(random_program(3).source.splitlines()) + 4


def test_terminated_run_reports_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that never ends has told of one wrong program when the run gets SIGTERM."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, time\n"
        "print(json.dumps({'seed': 7}), flush=True)\n"
        "verdict = {'outcome': 'wrong', 'problems': ['value of output 0'], 'refusals': {}, 'applied': {}}\n"
        "print(json.dumps(verdict), flush=True)\n"
        "print(json.dumps({'seed': 8}), flush=True)\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(fuzz_rewrites, "__file__", str(program))

    def note_and_end(summary: Summary, seed: int, verdict: Verdict) -> None:
        noted(summary, seed, verdict)
        timer.start()

    noted = Summary.note
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(Summary, "note", note_and_end)
    written = tmp_path / "out.json"
    assert main(["--seed", "7", "--examples", "4", "--show", "0", "--json", str(written)]) == 1
    assert json.loads(written.read_text())["faults"] == {"value of output #": [7]}
    assert "WRONG: seed 7: value of output #" in capsys.readouterr().out


def test_a_process_that_dies_costs_one_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker that ends in the middle of the second program is started again with the third."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys\n"
        "first, count = (int(sys.argv[sys.argv.index(name) + 1]) for name in ('--seed', '--examples'))\n"
        "for seed in range(first, first + count):\n"
        "    print(json.dumps({'seed': seed}), flush=True)\n"
        "    if seed == 1:\n"
        "        os._exit(3)\n"
        "    print(json.dumps({'outcome': 'ok', 'problems': [], 'refusals': {}, 'applied': {}}), flush=True)\n"
    )
    monkeypatch.setattr(fuzz_rewrites, "__file__", str(program))
    written = tmp_path / "out.json"
    assert main(["--examples", "4", "--json", str(written)]) == 1
    document = json.loads(written.read_text())
    assert document["deaths"] == [1]
    assert document["outcomes"] == {"ok": 3}


def test_kind_of_a_raised_fault_is_its_message() -> None:
    assert kind_of_fault(Verdict(Outcome.WRONG, ("raises", "RuntimeError: boom\nmore"))) == "RuntimeError: boom"

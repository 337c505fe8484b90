"""A process that binds and limits itself, and keeps its standard output for its answers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from frx_graph.support.supervisor.process import extend_pythonpath

MODULE = "frx_graph.support.supervisor.supervised"


def run(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **extend_pythonpath()}
    program = [sys.executable, "-c", f"import os, resource, sys\nfrom {MODULE} import *\n{code}"]
    return subprocess.run(program, capture_output=True, text=True, check=False, env=environment)


def test_only_answers_go_to_what_was_standard_output() -> None:
    ran = run("with claim_stdout() as answers:\n print('printed', flush=True); answers.write(b'answer')")
    assert (ran.stdout, ran.stderr) == ("answer", "printed\n")


def test_it_may_use_so_much_and_leaves_no_core() -> None:
    limited = "resource.RLIMIT_AS, resource.RLIMIT_CORE"
    ran = run(
        f"limit_resources({{resource.RLIMIT_AS: 1 << 30}})\n"
        f"print(*map(resource.getrlimit, ({limited})))\n"
        "bytearray(2 << 30)"
    )
    assert ran.stdout == f"{(1 << 30, 1 << 30)} {(0, 0)}\n"
    assert "MemoryError" in ran.stderr
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != 1 << 30


def test_it_does_not_outlive_a_parent_that_has_gone() -> None:
    assert run(f"end_with_parent({os.getpid()}); print('goes on')").stdout == "goes on\n"
    ran = run("end_with_parent(1 << 30); print('goes on')")
    assert (ran.stdout, ran.returncode) == ("", 1)

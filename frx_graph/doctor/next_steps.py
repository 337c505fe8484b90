"""Suggest the next commands after an installation."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.instrumentation.script_search import FoundScript, ScriptsFound
from frx_graph.support.check import Check


@dataclass(frozen=True, slots=True)
class NextCommand:
    """A command to run next, and its purpose."""

    command: str
    does: str


def suggest_commands(checks: Sequence[Check], scripts: ScriptsFound) -> tuple[NextCommand, ...]:
    """Return the commands for the likeliest training script, or for a model if there is no script."""
    commands = []
    if scripts.scripts:
        script = scripts.scripts[0]
        name = shlex.quote(str(script.path))
        if script.line is not None and not script.instrumented:
            commands.append(NextCommand(f"frx init --patch {name}", "have the script record its steps"))
        explained = "run it, find its bottleneck, and write a prompt for a language model"
        commands.append(NextCommand(f"frx collect --explain -- python {name}", explained))
        if _is_present(checks, "GPU model") and _is_present(checks, "ncu"):
            commands.append(NextCommand(f"frx profile --explain -- python {name}", "measure its kernels"))
    commands.append(NextCommand("frx advise file.py:callable", "layout fixes for a model, without training"))
    return tuple(commands)


def _is_present(checks: Sequence[Check], name: str) -> bool:
    return any(check.name == name and not check.absent for check in checks)


def describe_script(script: FoundScript) -> str:
    """Return one line about a script: its training loop."""
    if script.line is None:
        return script.note
    return f"line {script.line}: for ... in {script.over}"

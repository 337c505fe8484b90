"""Find likely training scripts below a folder, mainly by their content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper

from frx_graph.errors import ScriptError
from frx_graph.instrumentation.patch import is_instrumented
from frx_graph.instrumentation.script import parse_script, read_script
from frx_graph.instrumentation.training_loop import find_framework, find_training_loops

DEEPEST = 4
"""Depth of folders below the searched one."""
MOST_FILES = 2000
MOST_PARSED = 100
"""Limit on parsed scripts; a long one takes a tenth of a second."""
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "node_modules", "__pycache__", "build", "dist", "tests", "test"}
)
_MAY_TRAIN = (b"backward", b".step(", b"Trainer", b".fit(")
_USUAL_NAMES = ("train", "main", "run", "finetune", "pretrain")


@dataclass(frozen=True, slots=True)
class FoundScript:
    """A script that seems to train. `line` is the line of the first loop that can be wrapped, and `over` its iterable.
    It is None if the loop belongs to a framework or must be wrapped by hand; `note` gives the reason."""

    path: Path
    line: int | None
    over: str | None
    instrumented: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class ScriptsFound:
    """Likely scripts, the likeliest first. `complete` is False if a limit ended the search."""

    scripts: tuple[FoundScript, ...]
    complete: bool


def find_scripts(folder: Path) -> ScriptsFound:
    """Find the scripts in and below `folder` that seem to train. Links are not followed. Environments, hidden folders,
    installed packages and unreadable files are left out."""
    found, parsed_so_far, complete = [], 0, True
    for seen, path in enumerate(_list_scripts(folder)):
        if seen == MOST_FILES:
            complete = False
            break
        try:
            script = read_script(path)
            if not any(word in script.data for word in _MAY_TRAIN):
                continue
            if parsed_so_far == MOST_PARSED:
                complete = False
                break
            parsed_so_far += 1
            told = _describe_script(path.relative_to(folder), parse_script(script))
        except ScriptError:
            continue
        if told is not None:
            found.append(told)
    return ScriptsFound(tuple(sorted(found, key=_rank_script)), complete)


def _list_scripts(folder: Path) -> Iterator[Path]:
    """Yield scripts in order of their names, those nearer to the top first."""
    level = [folder]
    for _ in range(DEEPEST + 1):
        below: list[Path] = []
        for each in level:
            try:
                with os.scandir(each) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
            except OSError:
                continue
            yield from (Path(e.path) for e in listed if e.name.endswith(".py") and e.is_file(follow_symlinks=False))
            below += [Path(e.path) for e in listed if e.is_dir(follow_symlinks=False) and _is_searched(Path(e.path))]
        level = below


def _is_searched(folder: Path) -> bool:
    hidden = folder.name.startswith(".")
    return not hidden and folder.name not in _LEFT_OUT and not (folder / "pyvenv.cfg").exists()


def _describe_script(path: Path, module: cst.Module) -> FoundScript | None:
    instrumented = is_instrumented(module)
    loops = find_training_loops(MetadataWrapper(module, unsafe_skip_copy=True))
    if loops.loops:
        first = next((loop for loop in loops.loops if loop.over_batches), loops.loops[0])
        return FoundScript(path, first.line, first.over, instrumented)
    if loops.left:
        return FoundScript(path, None, None, instrumented, f"line {loops.left[0].line}: {loops.left[0].reason}")
    framework = find_framework(module)
    return (
        None if framework is None else FoundScript(path, None, None, instrumented, f"the loop is that of {framework}")
    )


def _rank_script(script: FoundScript) -> tuple[bool, bool, int, str]:
    """Return a smaller key for a likelier script: with loops to wrap, a usual name, nearer to the top."""
    usual = script.path.stem.lower().startswith(_USUAL_NAMES)
    return script.line is None, not usual, len(script.path.parts), str(script.path)

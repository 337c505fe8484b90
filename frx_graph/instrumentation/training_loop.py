"""Find a script's training loop with its batch, step and model, or the framework that owns the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from frx_graph.instrumentation.loop_model import find_model
from frx_graph.instrumentation.training_step import Evidence, Loop, find_inner_loops, find_training_evidence, name_parts

_COUNTERS = frozenset({"range", "trange", "count"})
_AROUND = frozenset({"enumerate", "tqdm", "track", "islice", "iter", "cycle", "notebook_tqdm", "progress_bar"})
"""Names of calls that yield the items of their first argument."""
_LONGEST_SHOWN = 60

CALLBACKS: Final = {
    "transformers": "frx_graph.callbacks.huggingface",
    "trl": "frx_graph.callbacks.huggingface",
    "lightning": "frx_graph.callbacks.lightning",
    "pytorch_lightning": "frx_graph.callbacks.lightning",
}
"""For each framework, the module whose `FrxCallback` records its steps."""


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """A loop whose every iteration is a step. `batch`, `step` and `model` are the arguments to pass, as source, or None
    if unknown. `step` is also None if it restarts in every epoch."""

    node: cst.For
    line: int
    over: str
    over_batches: bool
    batch: str | None
    step: str | None
    model: str | None


@dataclass(frozen=True, slots=True)
class NotWrapped:
    """A loop that trains, but is left alone."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoopsFound:
    """The training loops of one script."""

    loops: tuple[TrainingLoop, ...]
    left: tuple[NotWrapped, ...]


def find_training_loops(wrapper: MetadataWrapper) -> LoopsFound:
    """Return the loops that train."""
    evidence = find_training_evidence(wrapper.module)
    lines = wrapper.resolve(PositionProvider)
    parents = wrapper.resolve(ParentNodeProvider)
    chosen, left = [], []
    for loop in sorted(evidence, key=lambda each: lines[each].start.line):
        verdict = _classify_loop(loop, evidence)
        line = lines[loop].start.line
        if isinstance(verdict, str):
            left.append(NotWrapped(line, verdict))
        elif verdict:
            assert isinstance(loop, cst.For)
            chosen.append(_describe_loop(loop, line, wrapper.module, _is_outermost(loop, parents)))
    return LoopsFound(tuple(chosen), tuple(left))


def _classify_loop(loop: Loop, evidence: dict[Loop, Evidence]) -> bool | str:
    """Return True if each iteration of the loop is a step, or else the reason for doubt."""
    inside = [each for each in find_inner_loops(loop) if each in evidence]
    outside = [each for each in evidence if loop in find_inner_loops(each)]
    over_batches = isinstance(loop, cst.For) and not _is_over_numbers(loop)
    rivals = [each for each in inside if evidence[each] >= evidence[loop]]
    if evidence[loop] is Evidence.BACKWARD and any(evidence[each] is Evidence.STEP for each in (*inside, *outside)):
        # Several batches add up gradients for one optimizer step, or the step for a part is elsewhere.
        return False
    if any(isinstance(each, cst.For) and not _is_over_numbers(each) for each in rivals):
        return False
    if over_batches:
        return True
    holders = [each for each in outside if evidence[each] >= evidence[loop]]
    if any(isinstance(each, cst.For) and not _is_over_numbers(each) for each in holders):
        # Several updates for each batch, as of a critic.
        return False
    if rivals:
        return "loops that train are nested, and which one makes a step is not clear"
    if holders:
        return False
    if isinstance(loop, cst.While):
        return "it is a while loop: what is a batch in it, and where a step begins, is not clear"
    return True


def get_wrapping_call(iterable: cst.BaseExpression) -> cst.Call | None:
    """Return the expression if it is a call that yields its first argument's items, such as `tqdm(loader)`.
    Returns None otherwise, as for `iter(function, sentinel)`."""
    if not isinstance(iterable, cst.Call) or not iterable.args or _get_call_name(iterable) not in _AROUND:
        return None
    first = iterable.args[0]
    calls = _get_call_name(iterable) == "iter" and len(iterable.args) > 1
    return None if calls or first.star or first.keyword is not None else iterable


def _unwrap_iterable(loop: cst.For) -> tuple[list[str], cst.BaseExpression]:
    """Return the names of the calls around the iterable, and what is in them."""
    names, iterable = [], loop.iter
    while (around := get_wrapping_call(iterable)) is not None:
        names.append(_get_call_name(around))
        iterable = around.args[0].value
    return names, iterable


def _is_over_numbers(loop: cst.For) -> bool:
    _, iterable = _unwrap_iterable(loop)
    return isinstance(iterable, cst.Call) and _get_call_name(iterable) in _COUNTERS


def _get_call_name(call: cst.Call) -> str:
    return name_parts(call.func)[-1] if name_parts(call.func) else ""


def _describe_loop(loop: cst.For, line: int, module: cst.Module, once: bool) -> TrainingLoop:
    counts = _is_over_numbers(loop)
    counter: cst.BaseExpression | None = loop.target if counts else None
    batch: cst.BaseExpression | None = None if counts else loop.target
    if not counts and "enumerate" in _unwrap_iterable(loop)[0]:
        counter, batch = None, None
        if isinstance(loop.target, cst.Tuple) and len(loop.target.elements) == 2:
            counter, batch = (element.value for element in loop.target.elements)
    step = counter.value if once and isinstance(counter, cst.Name) and counter.value != "_" else None
    over = " ".join(module.code_for_node(loop.iter).split())
    return TrainingLoop(
        node=loop,
        line=line,
        over=over if len(over) <= _LONGEST_SHOWN else f"{over[: _LONGEST_SHOWN - 1]}…",
        over_batches=not counts,
        batch=None if batch is None else _format_batch(batch, module),
        step=step,
        model=find_model(loop, module),
    )


def _format_batch(batch: cst.BaseExpression, module: cst.Module) -> str | None:
    """Return the batch as an argument; None if it is discarded, or its target spans several lines."""
    if isinstance(batch, cst.Name):
        return None if batch.value == "_" else batch.value
    if not isinstance(batch, (cst.Tuple, cst.List)):
        return None
    text = module.code_for_node(batch)
    if "\n" in text or "\r" in text:
        return None
    return text if batch.lpar or isinstance(batch, cst.List) else f"({text})"


def _is_outermost(loop: cst.For, parents: object) -> bool:
    """Return True if the loop runs once: it is in no function, class or other loop."""
    assert hasattr(parents, "__getitem__")
    node: cst.CSTNode = loop
    while not isinstance(node, cst.Module):
        node = parents[node]
        if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.For, cst.While, cst.Lambda)):
            return False
    return True


def find_framework(module: cst.Module) -> str | None:
    """Return the framework whose `Trainer` a script makes, or None."""
    made = [name_parts(node.func) for node in m.findall(module, m.Call()) if isinstance(node, cst.Call)]
    if not any(name and name[-1].endswith("Trainer") for name in made):
        return None
    return next((name for name in list_imported_packages(module) if name in CALLBACKS), None)


def list_imported_packages(module: cst.Module) -> Iterator[str]:
    """Yield the packages that a script imports from anywhere in it."""
    for node in m.findall(module, m.Import() | m.ImportFrom()):
        if isinstance(node, cst.Import):
            names: list[cst.BaseExpression] = [alias.name for alias in node.names]
        else:
            names = [node.module] if isinstance(node, cst.ImportFrom) and node.module is not None else []
        yield from (parts[0] for parts in map(name_parts, names) if parts)

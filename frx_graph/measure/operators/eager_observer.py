"""Run one step of an eager program and attribute its layout copies to their call sites.

Each ATen operator runs in a separate recorder region, which gives the origin of each copy. Watching operators one by
one can change the work of composite operators. The accuracy benchmark measures that effect with an unwatched run of the
same step.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from frx_graph.capture.state_snapshot import preserve_state
from frx_graph.facts.operator_families import EXPLICIT_COPIES, WRITING_COPIES
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_measurement import (
    Mechanism,
    ObservedCopy,
    ObservedKind,
    ObservedRole,
    SeenCopy,
)
from frx_graph.measure.operators.operator_tagger import ACCUMULATION, ModuleStack, OperatorTagger, TaggedCall

_EXPLICIT = EXPLICIT_COPIES | WRITING_COPIES


def observe_eager(step: Callable[[], object], module: nn.Module | None) -> tuple[ObservedCopy, ...]:
    """Return the layout copies of one `step`, which is run twice: to warm up, and watched.

    `step` is one step of the program, backward included if there is one; `module` the model that it runs, for module
    paths. Each run begins with gradients of None, and `preserve_state` restores the state of `step`. Raises what `step`
    raises, and `EvidenceError` if a profiler is already running.
    """
    with preserve_state(step, module) as state:
        step()
        state.clear_gradients()
        recorder, modules = CopyRecorder(), ModuleStack(module)
        tagger = OperatorTagger(recorder, modules, state.parameters)
        with recorder, modules, tagger:
            step()
    return tuple(
        ObservedCopy.from_seen(seen, *_classify_kind(call, seen), _classify_role(call, seen), call.site, call.phase)
        for index, call in enumerate(tagger.calls)
        for seen in recorder.get_copies(index)
    )


def _classify_kind(call: TaggedCall, seen: SeenCopy) -> tuple[str, ObservedKind]:
    if seen.mechanism is not Mechanism.ATEN:
        return call.operator, "reorder"
    if call.part_of is not None:
        return call.part_of, "reshape" if call.part_of == "aten.reshape" else "operator"
    return call.operator, "explicit" if call.operator in _EXPLICIT else "operator"


def _classify_role(call: TaggedCall, seen: SeenCopy) -> ObservedRole:
    """A weight is a parameter, or a parameter's gradient; a computed weight is an input like any other."""
    if call.part_of == ACCUMULATION:
        return "weight"
    if seen.operand is not None and seen.operand < len(call.parameters):
        return "weight" if call.parameters[seen.operand] else "input"
    return seen.role

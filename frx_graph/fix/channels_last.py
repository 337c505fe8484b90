"""Run a model in channels-last: its weights from `__init__` on, its images from where they enter `forward` (FRX004).

The images that the program returns are then in channels-last, too, so the change needs `--unsafe-fixes`. Values stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.capture.captured_graph import InputKind
from frx_graph.facts.layout import Layout, name_channels_last
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.imports import name_torch
from frx_graph.fix.model_class import convert_weights, get_first_statement, list_parameters
from frx_graph.fix.source_file import CannotFixError
from frx_graph.passes.layouts.layout_fixes import select_worthwhile_changes
from frx_graph.records import Effort, SourceEdit


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return three insertions: one at the end of `__init__`, one for each image at the beginning of `forward`."""
    if subject.finding.effort is not Effort.ONE_LINE:
        raise CannotFixError("only a part of the model gains")
    if subject.root is None:
        raise CannotFixError("the model is of a class of torch: call `.to(memory_format=...)` where it is made")
    facts = subject.analysis.facts
    changes = select_worthwhile_changes(subject.analysis, Layout.CHANNELS_LAST)
    ranks = {change.rank for change in changes}
    if len(ranks) != 1:
        raise CannotFixError("no change of the whole model was measured to gain")
    rank = ranks.pop()
    source = subject.files.get(subject.root.file)
    torch, _ = name_torch(source)
    memory_format = name_channels_last(rank).replace("torch", torch)
    forward = source.find_function(subject.root)
    parameters = set(list_parameters(forward))
    entering = [facts.values[name] for change in changes for name in change.entering]
    if any(value.kind is not InputKind.ARGUMENT or value.path not in parameters for value in entering):
        raise CannotFixError("what has to be converted is not an argument of the model")
    stored = convert_weights(source, forward, facts, rank)
    if any(parameter.default is not None for parameter in forward.params.params):
        raise CannotFixError("an argument of `forward` may be left out, or be none")
    names = dict.fromkeys(value.path for value in entering)
    lines = [f"{name} = {name}.to(memory_format={memory_format})" for name in names]
    return [*stored, source.insert_before(get_first_statement(forward), lines)] if lines else stored


FIXER = Fixer("FRX004", "channels_last", propose, unsafe=True)

"""Run a model in channels-last: its weights from `__init__` on, its images from where they enter `forward`.

FRX004 asks for it where it is measured to be faster, FRX001 where convolutions convert plain images inside. Images that
the program returns are then in channels-last, too, so the change needs `--unsafe-fixes`. Values stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.capture.captured_graph import InputKind
from frx_graph.facts.graph_facts import ValueFacts
from frx_graph.facts.layout import Layout, name_channels_last
from frx_graph.fix.built_model import convert_built_model
from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.imports import name_torch
from frx_graph.fix.model_class import check_ranks, convert_weights, get_first_statement, list_parameters
from frx_graph.fix.source_file import CannotFixError, is_installed
from frx_graph.passes.copies.operand_remedies import asks_for_channels_last
from frx_graph.passes.layouts.layout_fixes import select_worthwhile_changes
from frx_graph.records import Effort, SourceEdit


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the conversion of a model that is measured to gain."""
    if subject.finding.effort is not Effort.ONE_LINE:
        raise CannotFixError("only a part of the model gains")
    facts = subject.analysis.facts
    changes = select_worthwhile_changes(subject.analysis, Layout.CHANNELS_LAST)
    ranks = {change.rank for change in changes}
    if len(ranks) != 1:
        raise CannotFixError("no change of the whole model was measured to gain")
    return _convert(subject, ranks, [facts.values[name] for change in changes for name in change.entering])


def propose_for_reorders(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the conversion of a model whose convolutions convert their images."""
    if not asks_for_channels_last(subject.finding.fix):
        raise OtherFixerError
    values = subject.analysis.facts.values
    ranks = {len(values[copy.value].shape) for copy in subject.finding.copies if copy.value in values}
    images = [value for value in values.values() if value.kind is InputKind.ARGUMENT and len(value.shape) in ranks]
    if len({value.path for value in images}) > 1:
        raise CannotFixError("several arguments have the dimensions of images")
    return _convert(subject, ranks, images)


def _convert(subject: FixSubject, ranks: set[int], entering: Sequence[ValueFacts]) -> Sequence[SourceEdit]:
    """Return an insertion at the end of `__init__`, and one for each image at the beginning of `forward`."""
    if len(ranks) != 1:
        raise CannotFixError("its images have different numbers of dimensions")
    if any(value.kind is not InputKind.ARGUMENT for value in entering):
        raise CannotFixError("what has to be converted is not an argument of the model")
    (rank,) = ranks
    names = dict.fromkeys(value.path for value in entering)
    if subject.root is None or is_installed(subject.root.file):
        return _convert_where_built(subject, rank, len(names))
    source = subject.files.get(subject.root.file)
    torch, _ = name_torch(source)
    memory_format = name_channels_last(rank).replace("torch", torch)
    forward = source.find_function(subject.root)
    if not set(list_parameters(forward)).issuperset(names):
        raise CannotFixError("what has to be converted is not an argument of the model")
    stored = convert_weights(source, forward, subject.analysis.facts, rank)
    given = (*forward.params.params, *forward.params.kwonly_params)
    if any(parameter.default is not None for parameter in given):
        raise CannotFixError("an argument of `forward` may be left out, or be none")
    lines = [f"{name} = {name}.to(memory_format={memory_format})" for name in names]
    return [*stored, source.insert_before(get_first_statement(forward), lines)] if lines else stored


def _convert_where_built(subject: FixSubject, rank: int, images: int) -> Sequence[SourceEdit]:
    """Return the conversion of a model whose class is not the user's, in the function that builds it."""
    if subject.builder is None or is_installed(subject.builder.file):
        raise CannotFixError("the model's class is not yours: call `.to(memory_format=...)` where it is made")
    check_ranks(subject.analysis.facts, rank)
    source = subject.files.get(subject.builder.file)
    torch, imported = name_torch(source)
    memory_format = name_channels_last(rank).replace("torch", torch)
    edits = convert_built_model(source, source.find_function(subject.builder), memory_format, images)
    return [*imported, *edits]


FIXER = Fixer("FRX004", "channels_last", propose, unsafe=True)
REORDER_FIXER = Fixer("FRX001", "channels_last", propose_for_reorders, unsafe=True)

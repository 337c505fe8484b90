"""Replace attention that is written out by `F.scaled_dot_product_attention` (FRX012).

The statements from the product of queries and keys to the product with the values must follow each other, in a block
that runs once, and nothing else may read what they make. The scale and the mask are taken over as they are written, and
must not be the caller's to choose. Weights that are dropped in training still are, by other random numbers. Where a
mask hides a whole row, softmax gives NaN, and a fused kernel zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import make_ordered_strides
from frx_graph.fix.attention_setting import is_in_transformers
from frx_graph.fix.changed_strides import explain_obstacle
from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.imports import name_functional
from frx_graph.fix.source_file import CannotFixError
from frx_graph.fix.written_attention import AttentionReader, WrittenAttention
from frx_graph.passes.attention_pattern import Attention, find_fusion_obstacle
from frx_graph.passes.copies.view_chain import is_view
from frx_graph.records import SourceEdit

_RANK = 4
"""Dimensions of the operands of a fused kernel: batch, heads, length, width."""


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the call in place of the second product, and the removal of the statements before it."""
    if is_in_transformers(subject.finding.site.file):
        raise OtherFixerError
    attention = _choose_attention(subject)
    source = subject.source
    reader = AttentionReader(source, source.find_function(subject.finding.site))
    written = WrittenAttention()
    softmax = reader.find_softmax(subject.finding.site.line)
    second, values = reader.find_second_product(softmax, written)
    query, key = reader.read_scores(reader.get_scores(softmax), written)
    _check_form(attention, written)
    reader.check_gone(second, written)
    reader.check_parts(written)
    reader.check_result(second)
    arguments = [query, key, values]
    if written.mask is not None and written.hides and attention.causal and reader.is_top_left(written.mask):
        arguments.append("is_causal=True")
    elif written.mask is not None:
        arguments.append(f"attn_mask={written.mask_text}")
    if written.dropout:
        arguments.append(f"dropout_p={written.dropout}")
    arguments.append(f"scale={written.scale_text}")
    name = name_functional(source, reader.function)
    call = f"{name}.scaled_dot_product_attention({', '.join(arguments)})"
    return [source.replace_outer(second, call), *(source.remove_statement(one) for one in written.gone)]


def _choose_attention(subject: FixSubject) -> Attention:
    """Return one of the finding's attentions, which all are of one form, that a fused kernel takes."""
    nodes, facts = set(subject.finding.nodes), subject.analysis.facts
    found = [one for one in subject.analysis.replaceable_attentions if one.softmax.node in nodes]
    if not found:
        raise CannotFixError("a fused kernel would not run it here")
    for one in found:
        if obstacle := find_fusion_obstacle(one):
            raise CannotFixError(obstacle)
        if _describe_form(one) != _describe_form(found[0]):
            raise CannotFixError("the line makes attentions of several forms")
        if one.dropout:
            raise CannotFixError("its dropout would draw other random numbers")
        _check_mask(facts, one)
        result, queries = _find_result(facts, one), _find_query(facts, one)
        # ATen's `_flash_attention_cpu` stores its result in the order of the queries.
        strides = make_ordered_strides(result.shape, queries.order)
        if obstacle := explain_obstacle(facts, result.name, strides):
            raise CannotFixError(obstacle)
    return found[0]


def _describe_form(attention: Attention) -> tuple[object, ...]:
    return attention.scale, attention.causal, len(attention.masks), len(attention.biases), attention.dropout


def _find_result(facts: GraphFacts, attention: Attention) -> ValueFacts:
    """Return what the second product makes, in the dimensions that the program sees: batch, heads, queries, width."""
    value = facts.values[attention.second.outputs[0]]
    while len(value.shape) != _RANK:
        inside = [user for user in facts.get_users(value.name) if is_view(user) and user.phase is Phase.FORWARD]
        if len(inside) != 1 or inside[0].site.location != attention.second.site.location:
            raise CannotFixError("it has other dimensions than batch, heads, length and width")
        value = facts.values[inside[0].outputs[0]]
    return value


def _find_query(facts: GraphFacts, attention: Attention) -> ValueFacts:
    """Return the queries as the program passes them to the first product, which flattens them."""
    value = attention.query
    while len(value.shape) != _RANK:
        producer = facts.get_producer(value.name)
        if producer is None or producer.site.location != attention.first.site.location or not producer.inputs:
            raise CannotFixError("its queries have other dimensions than batch, heads, length and width")
        value = facts.values[producer.inputs[0]]
    return value


def _check_mask(facts: GraphFacts, attention: Attention) -> None:
    """Raise `CannotFixError` for a mask that the scores take, and `scaled_dot_product_attention` does not."""
    if attention.biases:
        raise CannotFixError("its mask is added to the scores: for another dtype it would mean something else")
    for mask in attention.masks:
        value = facts.values.get(mask.condition)
        if value is None or len(value.shape) < 2:
            raise CannotFixError("its mask has fewer than two dimensions")


def _check_form(attention: Attention, written: WrittenAttention) -> None:
    """Raise `CannotFixError` if the graph has computed something that was not found in the source, or the reverse."""
    if len(attention.masks) > 1 or bool(attention.masks) is not (written.mask is not None):
        raise CannotFixError("its masks are not written between the product and the softmax")
    if attention.scale_on_query and written.scale is None:
        return
    if (attention.scale is None) is not (written.scale is None):
        raise CannotFixError("its scale is not written between the product and the softmax")


FIXER = Fixer("FRX012", "fused_attention", propose)

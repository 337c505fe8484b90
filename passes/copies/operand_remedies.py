"""Choose the fix for copies inside an operator: by operator, strides, and the origin of the strides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import (
    CHANNELS_LAST_ORDER,
    Layout,
    StridePattern,
    make_contiguous_strides,
    name_channels_last,
)
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.copy_findings import CopyGroup, Remedy
from frx_graph.passes.copies.stride_replay import find_order_for_strides
from frx_graph.passes.copies.view_chain import (
    compute_value_key,
    describe_origin,
    find_stride_origin,
    format_location,
    is_view,
    trace_views,
)
from frx_graph.passes.layouts.operator_layout import find_layout_operator
from frx_graph.records import Copy, CopyKind, Effort, OperandRole, Risk

_IMAGE_RANKS = (4, 5)
"""Ranks of 2-D and 3-D images with batch and channels, to which `memory_format` applies."""
_DENSE_LAYOUTS = frozenset({Layout.PLAIN, Layout.CHANNELS_LAST})
_SEQUENCE_CONVOLUTION = Remedy(
    "run it as a 2-D convolution in channels-last: `F.conv2d(x.unsqueeze(2), weight.unsqueeze(2), ...)`, the "
    "weight stored channels-last and x stored (batch, length, channels), which `x.transpose(1, 2)` of such a "
    "tensor is; a 1-D convolution has no layout that oneDNN takes as it is",
    risk=Risk.MEDIUM,
)


_MEASURED = "(FRX004 counts the gain)"
_TO_MEASURE = "Whether that is faster for these shapes is FRX004's measurement"


def asks_for_channels_last(fix: str) -> bool:
    """Return True for the text of a remedy by which the model and its images become channels-last."""
    return _MEASURED in fix or _TO_MEASURE in fix


def get_operator_name(copy: Copy) -> str:
    """Return the short operator name, such as `max_pool2d_with_indices`."""
    return copy.operator.removeprefix("aten.")


def count_hidden_copies(analysis: Analysis) -> Mapping[tuple[object, ...], int]:
    """Count the hidden copies of each value per step, by the identity of the value and not its name."""
    facts = analysis.facts
    return Counter(
        compute_value_key(facts, copy.value)
        for copy in analysis.copies
        if copy.kind is CopyKind.OPERATOR and copy.value in facts.values
    )


def choose_remedy(analysis: Analysis, group: CopyGroup, copied: Mapping[tuple[object, ...], int]) -> Remedy:
    """Return the fix for the largest copy of the line, which mostly ends the others, too."""
    facts = analysis.facts
    copy = group.largest
    value = facts.values.get(copy.value)
    if "conv" in copy.operator and value is not None and len(value.shape) == 3 and value.device.type == "cpu":
        return _SEQUENCE_CONVOLUTION
    once = _suggest_one_copy(facts, group, copied)
    settled = (
        _find_replaced_attention(analysis, group)
        # A program cannot make a gradient contiguous, but the layout of the convolution decides about it.
        or (once if copy.phase is Phase.FORWARD else None)
        or _find_faster_layout(analysis, group)
        or once
        or _find_best_layout(analysis, group)
    )
    if settled is not None:
        return settled
    if copy.kind is CopyKind.REORDER:
        return _choose_library_remedy(facts, copy, value)
    if value is None:
        return Remedy(f"give {get_operator_name(copy)} contiguous operands")
    stored = _suggest_channels_last_producer(facts, copy, value)
    if stored:
        return Remedy(stored)
    if value.layout is Layout.PLAIN and not value.is_parameter and _has_channels_last_weight(facts, copy):
        return Remedy(_suggest_image_conversion(facts, value), Effort.ONE_LINE)
    if _is_plain_image(facts, copy, value):
        run = f"{get_operator_name(copy)} copies although its operand is contiguous: run this part of the model in"
        return _suggest_channels_last(f"{run} channels-last,", len(value.shape))
    if copy.role is OperandRole.OUTPUT:
        return _choose_result_remedy(facts, copy)
    return _choose_matmul_remedy(value) if copy.operator == "aten.matmul" else _choose_last_resort(facts, copy, value)


def _suggest_one_copy(facts: GraphFacts, group: CopyGroup, copied: Mapping[tuple[object, ...], int]) -> Remedy | None:
    """Return one copy in place of several, if a step copies the value more than once."""
    value = facts.values.get(group.largest.value)
    if value is None or value.layout is Layout.PLAIN:
        return None
    key = compute_value_key(facts, value.name)
    times = copied[key]
    if times < 2:
        return None
    own = (copy for copy in group.copies if copy.kind is CopyKind.OPERATOR and copy.value in facts.values)
    moved = sum(copy.bytes for copy in own if compute_value_key(facts, copy.value) == key)
    wanted = ""
    if len(value.shape) in _IMAGE_RANKS and _has_channels_last_weight(facts, group.largest):
        wanted = f"memory_format={name_channels_last(len(value.shape))}"
    once = f"call `.contiguous({wanted})` once on the value, before its first use: a step copies it {times} times now"
    stored = _suggest_channels_last_producer(facts, group.largest, value)
    return Remedy(
        f"{once}. To save them all, {stored}" if stored else once,
        Effort.ONE_LINE,
        sure_bytes=moved * (times - 1) // times,
    )


def _find_faster_layout(analysis: Analysis, group: CopyGroup) -> Remedy | None:
    """Return the layout that is measured to be faster, as the layout rules do, if it ends the copies of the whole line:
    those of convolutions whose operands are dense in one of the two layouts. Others stay in either layout."""
    changes = {node: change for change in analysis.layout_changes if change.exceeds_noise for node in change.anchors}
    found = [changes.get(node) for node in group.nodes]
    first = found[0]
    if first is None or any(change is None or change.target is not first.target for change in found):
        return None
    if not all(_find_layouts(analysis.facts, node) <= _DENSE_LAYOUTS for node in group.nodes):
        return None
    if first.target is Layout.PLAIN:
        fix = "keep images and weights plain here: that is measured to be faster (FRX015 counts the gain)"
    else:
        call = f"`.to(memory_format={name_channels_last(first.rank)})`"
        fix = f"run this line in channels-last, measured to be faster here {_MEASURED}: {call} for the "
        fix += "model, or for these modules and their input"
    return Remedy(fix, Effort.ONE_LINE)


def _find_best_layout(analysis: Analysis, group: CopyGroup) -> Remedy | None:
    """Leave conversions of the library alone if the operators have all images in one layout, and the other one is
    measured not to gain."""
    facts = analysis.facts
    times = [analysis.layout_times.get(node) for node in group.nodes]
    timed = all(t is not None and t.steady and t.gain_seconds is not None for t in times)
    if not timed or analysis.device is None or analysis.loaded:
        return None
    changed = {node for change in analysis.layout_changes if change.exceeds_noise for node in change.anchors}
    if not changed.isdisjoint(group.nodes) or any(copy.kind is not CopyKind.REORDER for copy in group.copies):
        return None
    for copy in group.copies:
        layouts = _find_layouts(facts, copy.node, parameters=False)
        mixed = layouts == {Layout.PLAIN} and _has_channels_last_weight(facts, copy)
        if len(layouts) != 1 or not layouts <= _DENSE_LAYOUTS or mixed:
            return None
    return Remedy("leave the layout as it is: the other one is measured not to gain here", needs_action=False)


def _find_layouts(facts: GraphFacts, node: str, *, parameters: bool = True) -> set[Layout]:
    """Return the layouts of images that an operator reads; weights count with `parameters`."""
    values = facts.get_input_values(facts.op_by_node[node])
    return {v.layout for v in values if len(v.shape) in _IMAGE_RANKS and (parameters or not v.is_parameter)}


def _find_replaced_attention(analysis: Analysis, group: CopyGroup) -> Remedy | None:
    """Return FRX012's fix if it ends every copy of the group: matmul makes them of operands of such attentions."""
    facts, copied = analysis.facts, analysis.replaceable_operand_bases
    results = [facts.op_by_node[copy.node].outputs[0] for copy in group.copies if copy.operator == "aten.matmul"]
    if len(results) < len(group.copies) or not copied.keys() >= set(results):
        return None
    where = format_location(copied[results[0]].softmax.site)
    many = "the operand as it is: this copy ends" if group.count == 1 else "the operands as they are: these copies end"
    return Remedy(
        f"call F.scaled_dot_product_attention for the attention at {where} (FRX012), which takes {many}",
        risk=Risk.MEDIUM,
    )


def _choose_library_remedy(facts: GraphFacts, copy: Copy, value: ValueFacts | None) -> Remedy:
    rank = len(value.shape) if value is not None else 4
    if "conv" not in copy.operator or rank not in _IMAGE_RANKS:
        return Remedy(f"give {get_operator_name(copy)} plain contiguous operands")
    if value is not None and value.layout is not Layout.CHANNELS_LAST and _has_channels_last_weight(facts, copy):
        return Remedy(_suggest_image_conversion(facts, value), Effort.ONE_LINE)
    if _find_layouts(facts, copy.node, parameters=False) == {Layout.CHANNELS_LAST}:
        return Remedy(
            "this convolution converts although it runs channels-last: compare it in plain layout (FRX015 has the "
            "measured times, if any)"
        )
    run = "run the convolution in channels-last, in which it takes and returns tensors as they are:"
    return _suggest_channels_last(run, rank)


def _choose_result_remedy(facts: GraphFacts, copy: Copy) -> Remedy:
    """Fix an operator that computes its result in one layout and stores it in another."""
    op = facts.op_by_node.get(copy.node)
    operands = facts.get_input_values(op) if op else ()
    layouts = {value.layout for value in operands if len(value.shape) in _IMAGE_RANKS}
    if {Layout.PLAIN, Layout.CHANNELS_LAST} <= layouts:
        return Remedy(
            f"give {get_operator_name(copy)} all its images in one layout: some come plain, some channels-last, and "
            f"it stores its result again"
        )
    if copy.operator == "aten._native_multi_head_attention":
        return Remedy(
            "the kernel behind nn.MultiheadAttention stores its result a second time: if the attention weights are "
            "not needed, call F.scaled_dot_product_attention on your own projections, which does not",
            risk=Risk.MEDIUM,
        )
    if copy.phase is Phase.BACKWARD:
        return Remedy(
            "nothing to change in the source: autograd calls this operator, which stores its result a second time; a "
            "trial may choose another form",
            needs_action=False,
        )
    return Remedy(f"use another form of {get_operator_name(copy)}: it stores its result a second time for any strides")


def _has_channels_last_weight(facts: GraphFacts, copy: Copy) -> bool:
    op = facts.op_by_node.get(copy.node)
    if op is None or "conv" not in copy.operator:
        return False
    parameters = (facts.values[trace_views(facts, name).base] for name in op.inputs)
    return any(p.is_parameter and p.layout is Layout.CHANNELS_LAST for p in parameters)


def _suggest_image_conversion(facts: GraphFacts, value: ValueFacts) -> str:
    """Describe how to convert an image whose weight is converted already."""
    memory_format = name_channels_last(len(value.shape))
    base = facts.values[trace_views(facts, value.name).base]
    producer = facts.get_producer(base.name)
    if producer is None:
        return f"convert the input `{base.path or base.name}` too: `.to(memory_format={memory_format})`"
    if producer.operator in LAYOUT_COPIES:
        place = format_location(producer.site)
        return f"drop the copy at {place}, which makes the image plain: the weight is channels-last"
    return (
        f"the weight is channels-last, the image is not: keep what {producer.operator.removeprefix('aten.')} at "
        f"{format_location(producer.site)} makes in channels-last, or convert it there, "
        f"`.contiguous(memory_format={memory_format})`"
    )


def _is_plain_image(facts: GraphFacts, copy: Copy, value: ValueFacts) -> bool:
    """Return True if the operator copies although it reads contiguous images."""
    op = facts.op_by_node.get(copy.node)
    if op is None or len(value.shape) not in _IMAGE_RANKS or not find_layout_operator(op).joins_images:
        return False
    images = (value, *(v for v in facts.get_input_values(op) if len(v.shape) == len(value.shape)))
    return all(image.layout is Layout.PLAIN for image in images)


def _suggest_channels_last(run: str, rank: int) -> Remedy:
    return Remedy(
        f"{run} `model.to(memory_format={name_channels_last(rank)})` and the same for the input. {_TO_MEASURE}",
        Effort.ONE_LINE,
    )


def _choose_matmul_remedy(value: ValueFacts) -> Remedy:
    if value.layout is Layout.EXPANDED:
        return Remedy(
            "do not multiply with an expanded operand, which matmul writes out in full: fold the batch into the rows "
            "(`x.flatten(0, -2) @ w`), or use F.linear"
        )
    if value.pattern is StridePattern.HEADS or len(value.shape) >= 4:
        return Remedy(
            "matmul needs each operand's batch dimensions as one: in an attention use "
            "F.scaled_dot_product_attention, which takes (batch, heads, sequence, dim) views as they are (FRX012); "
            "elsewhere store the operand with its batch dimensions outermost",
            risk=Risk.MEDIUM,
        )
    return Remedy("store the operand contiguous where it is made")


def _suggest_channels_last_producer(facts: GraphFacts, copy: Copy, value: ValueFacts) -> str:
    """Suggest running the convolution that made the value in channels-last, if its views then have contiguous strides;
    else return an empty text."""
    base = facts.values[trace_views(facts, value.name).base]
    producer = facts.get_producer(base.name)
    if producer is None or producer.operator != "aten.convolution":
        return ""
    order = find_order_for_strides(facts, value.name, make_contiguous_strides(value.shape))
    if order is None or order != CHANNELS_LAST_ORDER.get(len(base.shape)):
        return ""
    memory_format = name_channels_last(len(base.shape))
    return (
        f"run the convolution at {format_location(producer.site)} in channels-last (its weight and input "
        f"`.to(memory_format={memory_format})`): the views of the result are then what {get_operator_name(copy)} reads"
    )


def _choose_last_resort(facts: GraphFacts, copy: Copy, value: ValueFacts) -> Remedy:
    origin, reader = find_stride_origin(facts, value.name), get_operator_name(copy)
    if origin is None:
        return Remedy(f"use another operator than {reader}, which copies although its operand is contiguous")
    if origin.op is None:
        return Remedy("hand the tensor to the model contiguous", Effort.ONE_LINE)
    made = describe_origin(facts, origin)
    base = trace_views(facts, origin.value).base
    if is_view(origin.op) and facts.get_producer(base) is None:
        return Remedy(
            f"let {reader} see `{facts.values[base].path or base}` as the graph gets it, or pass it in the order that "
            f"{reader} reads: the strides are {made}, and a `.contiguous()` behind it only moves the copy"
        )
    return Remedy(
        f"let {reader} see the value before its strides change, {made}; if other operators read it too, one "
        f"`.contiguous()` there serves them all"
    )

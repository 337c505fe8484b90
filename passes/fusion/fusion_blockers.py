"""Find places at which even a fusing compiler writes a tensor to memory and reads it back.

Inductor's fusion was observed in its CPU kernels (torch 2.15). For CUDA it is taken from Inductor's sources, as the
findings state.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from frx_graph.capture.captured_graph import GraphBreak, Phase
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_families import MATRIX_PRODUCTS, is_collective
from frx_graph.passes.costs.operator_costs import find_compute_dtype
from frx_graph.passes.costs.operator_traffic import count_operand_bytes
from frx_graph.passes.fusion.fusion_groups import Dataflow, FusionGroup, Kernels
from frx_graph.passes.fusion.fusion_roles import FusionRole, is_device_transfer


class Blocker(enum.StrEnum):
    """Reasons why two operators do not share a kernel."""

    EPILOGUE = "library epilogue"
    """A matrix product or convolution is a library call; the pointwise operators behind it are not part of it."""
    SHARED_OPERAND = "separate products"
    """Several products read the same operand, each for itself."""
    REDUCTION = "reduction barrier"
    """The result of a reduction is needed for every element of the operand."""
    SLICE = "shape"
    """A tensor is computed in full but read only in part."""
    INDEX = "data-dependent index"
    """A scatter, whose target elements are known only at run time."""
    DEVICE = "device change"
    GRAPH_BREAK = "graph break"
    OPAQUE = "opaque operator"
    """A custom operator: the compiler cannot see inside."""


@dataclass(frozen=True, slots=True)
class BlockedFusion:
    """One place. `ops` stay apart, `op` is the one to point at; `bytes` is the traffic that one kernel would save.
    `detail` is half a sentence of evidence."""

    blocker: Blocker
    op: OpFacts
    ops: tuple[OpFacts, ...]
    bytes: int
    detail: str


_WITH_EPILOGUE = MATRIX_PRODUCTS | {"aten.convolution"}
_ONEDNN_EPILOGUES = frozenset(
    {"relu", "sigmoid", "tanh", "hardswish", "leaky_relu", "hardtanh", "gelu", "silu", "add", "native_batch_norm"}
)
"""Operators that Inductor's freezing folds into a oneDNN convolution or linear
(`_inductor/fx_passes/mkldnn_fusion.py`), and batch norm with stored statistics, which it folds into the weights."""
_HALF = (torch.bfloat16, torch.float16)
_SCATTERS = frozenset({"index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce"})


def find_blocked_fusions(kernels: Kernels, breaks: Sequence[GraphBreak], inner: str) -> list[BlockedFusion]:
    """Return every place of one graph, in no particular order."""
    return [
        *_find_library_epilogues(kernels),
        *_find_shared_operands(kernels.flow),
        *_find_reduction_barriers(kernels),
        *_find_sliced_results(kernels.flow, inner),
        *_find_barriers(kernels),
        *_find_graph_break(kernels.flow, breaks),
    ]


def _find_library_epilogues(kernels: Kernels) -> Iterator[BlockedFusion]:
    """Yield one product for each group of pointwise operators: two products cannot have the same epilogue."""
    taken: set[str] = set()
    for op in kernels.flow.facts.ops:
        group = kernels.find_sole_group(op.outputs[0]) if op.operator in _WITH_EPILOGUE and op.outputs else None
        if group is None or group.phase is not op.phase or group.ops[0].node in taken:
            continue
        readers = kernels.list_readers(op.outputs[0])
        if all(_can_be_epilogue(op, reader, kernels.flow) for reader in readers):
            taken.add(group.ops[0].node)
            result = kernels.flow.facts.values[op.outputs[0]]
            behind = [o for o in group.ops if o.pointwise or o in readers]
            detail = f"{result.shape} is written and read again"
            yield BlockedFusion(Blocker.EPILOGUE, op, (op, *behind), 2 * result.bytes, detail)


def _can_be_epilogue(op: OpFacts, reader: OpFacts, flow: Dataflow) -> bool:
    """Return True if Inductor can take `reader` into the kernel of `op`: on CUDA its templates take any pointwise
    operator; on the CPU freezing takes some, for inference, into oneDNN."""
    device = flow.facts.values[op.outputs[0]].device.type
    if flow.roles[reader.node] is not FusionRole.POINTWISE or device not in ("cpu", "cuda"):
        return False
    if device == "cuda":
        return True
    name = reader.operator.rpartition(".")[2].removesuffix("_")
    return not flow.facts.train and name in _ONEDNN_EPILOGUES and _can_fuse_in_onednn(op, reader, flow)


def _can_fuse_in_onednn(op: OpFacts, reader: OpFacts, flow: Dataflow) -> bool:
    """Return True for 2-D and 3-D convolutions, and for linears in half precision without broadcast additions."""
    values = flow.facts.values
    if op.operator == "aten.convolution":
        return len(values[op.outputs[0]].shape) in (4, 5)
    if op.operator not in ("aten.mm", "aten.addmm") or find_compute_dtype(op, flow.facts) not in _HALF:
        return False
    return all(values[name].numel == values[op.outputs[0]].numel for name in reader.inputs)


def _find_shared_operands(flow: Dataflow) -> Iterator[BlockedFusion]:
    """Yield products of one activation with several weights, such as query, key and value of attention."""
    for root, readers in flow.readers.items():
        products = [
            op for op, name in readers if op.phase is Phase.FORWARD and _is_weight_product(op, name, root, flow)
        ]
        if len(products) > 1:
            operand = flow.facts.values[root]
            saved = (len(products) - 1) * operand.bytes
            detail = f"{len(products)} products read the same {operand.shape}, each for itself"
            yield BlockedFusion(Blocker.SHARED_OPERAND, products[0], tuple(products), saved, detail)


def _is_weight_product(op: OpFacts, operand: str, root: str, flow: Dataflow) -> bool:
    """Return True for a product of all of `operand`, on the left, with a parameter."""
    if op.operator not in ("aten.mm", "aten.addmm"):
        return False
    values = flow.facts.values
    left, right = op.inputs[-2:]
    return left == operand and values[flow.get_root(right)].is_parameter and values[left].numel == values[root].numel


def _find_reduction_barriers(kernels: Kernels) -> Iterator[BlockedFusion]:
    flow = kernels.flow
    for first in kernels.groups:
        for op in first.ops:
            if flow.roles[op.node] is not FusionRole.REDUCTION:
                continue
            reduced = max((flow.facts.values[name].numel for name in op.inputs), default=0)
            numbers = {
                kernels.number_of.get(reader.node) for name in op.outputs for reader in kernels.list_readers(name)
            }
            for number in sorted(number for number in numbers if number is not None):
                second = kernels.groups[number]
                saved = _count_shared_bytes(kernels, first, second, reduced) if second.phase is first.phase else 0
                if saved:
                    detail = f"operators after {op.operator.removeprefix('aten.')} read its operand again"
                    yield BlockedFusion(Blocker.REDUCTION, op, (op, *second.ops), saved, detail)


def _count_shared_bytes(kernels: Kernels, first: FusionGroup, second: FusionGroup, least: int) -> int:
    """Return the extra traffic of tensors with at least `least` elements that both groups need: the second reading, and
    the writing if nothing else reads them."""
    flow = kernels.flow
    numbers = {kernels.number_of[first.ops[0].node], kernels.number_of[second.ops[0].node]}
    total = 0
    for root in dict.fromkeys(flow.get_root(name) for op in second.ops for name in op.inputs):
        value = flow.facts.values[root]
        maker = flow.find_maker(root)
        readers = {kernels.number_of.get(op.node) for op in kernels.list_readers(root)}
        made = maker is not None and kernels.number_of.get(maker.node) == kernels.number_of[first.ops[0].node]
        if value.numel < least or not (made or readers >= numbers):
            continue
        written_for_it = made and readers <= numbers and root not in flow.returned
        total += (2 if written_for_it else 1) * value.bytes
    return total


def _find_sliced_results(flow: Dataflow, inner: str) -> Iterator[BlockedFusion]:
    """Yield operators whose result is read at most by half, unless the compiler inlines them into their readers."""
    for op in flow.facts.ops:
        role = flow.roles[op.node]
        inlined = inner == "inductor" and role is FusionRole.POINTWISE
        if role not in (FusionRole.POINTWISE, FusionRole.ROW_REDUCTION) or inlined or len(op.outputs) == 0:
            continue
        result = flow.facts.values[op.outputs[0]]
        readers = flow.readers.get(result.name, ())
        read = sum(flow.facts.values[name].numel for _, name in readers)
        if 0 < 2 * read <= result.numel and result.name not in flow.returned:
            needed = read / result.numel
            moved = result.bytes + sum(
                count_operand_bytes(op, flow.facts.values[name], flow.facts)
                for name in dict.fromkeys(op.inputs)
                if flow.facts.values[name].numel == result.numel
            )
            ops = (op, *(reader for reader, _ in readers))
            detail = f"of {result.shape} only {100 * needed:.0f}% is read"
            yield BlockedFusion(Blocker.SLICE, op, ops, round(moved * (1 - needed)), detail)


def _find_barriers(kernels: Kernels) -> Iterator[BlockedFusion]:
    """Yield operators that fuse with nothing, between operators that would fuse with each other."""
    flow = kernels.flow
    for op in flow.facts.ops:
        blocker = _classify_barrier(op, flow)
        if blocker is None:
            continue
        made = [name for name in dict.fromkeys(map(flow.get_root, op.inputs)) if _is_made_for(name, op, kernels)]
        used = [name for name in op.outputs if kernels.find_sole_group(name) is not None]
        saved = 2 * sum(flow.facts.values[name].bytes for name in (*made, *used))
        if saved:
            neighbours = (*(maker for name in made if (maker := flow.find_maker(name))), op)
            behind = tuple(reader for name in used for reader in kernels.list_readers(name))
            sides = [text for names, text in ((made, "what is made for it"), (used, "what it returns")) if names]
            detail = f"{' and '.join(sides)} goes through memory"
            yield BlockedFusion(blocker, op, (*neighbours, *behind), saved, detail)


def _classify_barrier(op: OpFacts, flow: Dataflow) -> Blocker | None:
    if op.phase is not Phase.FORWARD or flow.roles[op.node] is not FusionRole.BARRIER:
        return None
    if op.opaque:
        return None if is_collective(op.operator) else Blocker.OPAQUE
    if is_device_transfer(op, flow.facts):
        return Blocker.DEVICE
    return Blocker.INDEX if op.operator.partition(".")[2].removesuffix("_") in _SCATTERS else None


def _is_made_for(root: str, op: OpFacts, kernels: Kernels) -> bool:
    """Return True if a fusible operator made `root` for `op` alone."""
    maker = kernels.flow.find_maker(root)
    alone = [reader.node for reader in kernels.list_readers(root)] == [op.node] and root not in kernels.flow.returned
    return alone and maker is not None and maker.node in kernels.number_of and maker.phase is op.phase


def _find_graph_break(flow: Dataflow, breaks: Sequence[GraphBreak]) -> Iterator[BlockedFusion]:
    """Yield the break at which this graph ends, if fusible operators made its results.

    That is the nearest break behind all lines of a function that the graph covers in part.
    """
    lines: dict[tuple[str, str], int] = {}
    for op in flow.facts.ops:
        key = (op.site.file, op.site.function)
        lines[key] = max(lines.get(key, 0), op.site.line)
    after = [b for b in breaks if lines.get((b.site.file, b.site.function), b.site.line + 1) <= b.site.line]
    if not after:
        return
    found = min(after, key=lambda b: b.site.line)
    makers = [(root, flow.find_maker(root)) for root in sorted(flow.returned)]
    crossing = [(root, maker) for root, maker in makers if maker is not None and flow.is_fusible(maker)]
    saved = 2 * sum(flow.facts.values[root].bytes for root, _ in crossing)
    if saved:
        ops = tuple(maker for _, maker in crossing)
        at_break = replace(ops[-1], site=replace(found.site, module_path=ops[-1].site.module_path))
        yield BlockedFusion(Blocker.GRAPH_BREAK, at_break, ops, saved, found.reason.partition("\n")[0])

"""Finds zero padding of images that a convolution's own `padding` argument would add without a copy.

Assumes: the padded image is written to memory, since convolutions are library calls. That holds for eager and for
Inductor, which pads in a separate loop. The copy reads the image and writes a larger one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.zero_padding import Sides, list_convolutions, repeat_number, split_padding
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import list_module_paths, merge_sites
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk
from frx_graph.support.plain_text import format_bytes

RULE = "FRX016"


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each call site that pads images for convolutions, the same on both sides."""
    sites: dict[object, list[tuple[OpFacts, str]]] = {}
    for op, fix in _list_needless(analysis):
        sites.setdefault((op.site.file, op.site.line), []).append((op, fix))
    for found in sites.values():
        yield _build_finding(analysis, [op for op, _ in found], {fix for _, fix in found})


def _list_needless(analysis: Analysis) -> Iterator[tuple[OpFacts, str]]:
    """Yield padding that convolutions can add, with the arguments that they then have."""
    facts = analysis.facts
    for op in facts.ops:
        sides = split_padding(op, len(facts.values[op.outputs[0]].shape)) if op.outputs else None
        if not sides or not all(one.symmetric for one in sides) or not any(one.front for one in sides):
            continue
        padded = facts.values[op.outputs[0]]
        convolutions = list_convolutions(padded, facts)
        if convolutions and not padded.user_visible:
            yield op, _describe_arguments(sides, convolutions)


def _describe_arguments(sides: Sequence[Sides], convolutions: Sequence[OpFacts]) -> str:
    """Return the `padding` of the convolutions behind padding by `sides`."""
    added = tuple(one.front for one in sides)
    own = {repeat_number(get_argument(one, "padding"), len(sides)) for one in convolutions}
    if len(own) > 1:
        return f"add {added} to the padding of each convolution behind it"
    padding = tuple(one + more for one, more in zip(own.pop(), added, strict=True))
    return f"give the convolution behind it padding={padding}"


def _build_finding(analysis: Analysis, ops: Sequence[OpFacts], fixes: Collection[str]) -> Finding:
    facts = analysis.facts
    wasted = facts.calls * sum(facts.values[op.inputs[0]].bytes + facts.values[op.outputs[0]].bytes for op in ops)
    count = facts.calls * len(ops)
    fix = next(iter(fixes)) if len(fixes) == 1 else "add its numbers to the padding of each convolution behind it"
    return Finding(
        rule=RULE,
        title="Image copied to pad it with zeros for a convolution",
        severity=grade_bytes(wasted, analysis.step_bytes),
        site=merge_sites(ops),
        nodes=tuple(op.node for op in ops),
        count_per_step=count,
        bytes_per_step=wasted,
        saving=predict_saving(wasted, wasted, analysis.step_bytes),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=f"leave out the padding, and {fix}",
        confidence=confidence.MEASURED,
        evidence=(
            Evidence(
                f"{count} padded {'copy' if count == 1 else 'copies'} that only convolutions read: "
                f"{format_bytes(wasted)} moved",
                "padding of the captured graph",
            ),
        ),
        modules=list_module_paths(ops),
    )


DETECTOR = Detector(RULE, "padding_copy", detect)

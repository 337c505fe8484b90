"""Define a rewrite, and the facts about a graph that it may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, fx

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.passes.rewrites.layout.costs import AnchorSeconds
from frx_graph.passes.rewrites.layout.ops import OrderedOp, list_members
from frx_graph.passes.rewrites.meta_strides.requires_contiguous_input import (
    has_inexact_kernel,
    requires_contiguous_input,
)
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import (
    has_one_channel,
    has_size_dependent_gradient,
    reads_ambiguous_image,
    requires_traced_strides,
    uses_storage_offsets,
)
from frx_graph.passes.rewrites.meta_strides.unreliable_values import find_unreliable_meta_strides
from frx_graph.records import Candidate, Refusal


@dataclass(frozen=True)
class RewriteSubject:
    """One graph of an inner compiler, before any rewrite.

    `everything` rewrites all that can be rewritten, even if that saves nothing; tests use it. `seconds` holds measured
    times of anchors in each of their orders, `loop_seconds` those of loops that the compiler writes.
    `conversion_seconds` holds the measured time of one conversion of a value, by its name. Any other value moves its
    bytes at the device's bandwidth.

    `observable_outputs` names outputs whose strides callers can see. `original_inputs` holds inputs, as they were
    traced, whose strides the rewritten forward has changed since. `timed` holds seconds of the calls that a rewrite
    asked for, as far as they could be measured. `frozen` names inputs that are constants, `uncertain_inputs` inputs
    whose strides may differ from their fakes'.
    """

    facts: GraphFacts
    phase: Phase
    inner: str
    everything: bool = False
    seconds: AnchorSeconds = field(default_factory=dict)
    loop_seconds: AnchorSeconds = field(default_factory=dict)
    conversion_seconds: Mapping[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_s: float | None = None
    observable_outputs: frozenset[str] = frozenset()
    original_inputs: Mapping[str, Tensor] = field(default_factory=dict)
    timed: Mapping[OperatorSignature, float] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    uncertain_inputs: frozenset[str] = frozenset()

    @cached_property
    def members(self) -> tuple[OrderedOp, ...]:
        """The operators that pass an order on."""
        return list_members(self.facts, self.inner, self._can_change)

    @cached_property
    def _kept_memory(self) -> frozenset[int]:
        """Memory that must not be copied: of several outputs, with gaps to be kept, or addressed by offsets."""
        values, ops = self.facts.values, self.facts.ops
        returned = [values[name] for name in self.observable_outputs if name in values]
        counted = Counter(value.storage for value in returned)
        told = [value for op in ops if requires_traced_strides(op) for value in self.facts.get_input_values(op)]
        placed = [value for op in ops if uses_storage_offsets(op) for value in self.facts.get_input_values(op)]
        kept = (value for value in (*returned, *told) if counted[value.storage] > 1 or not value.dense)
        return frozenset(value.storage for value in (*kept, *placed))

    def keeps_its_strides(self, op: OpFacts) -> bool:
        """Return True for an operator that must be given the strides that it was traced with.

        For sizes that depend on data, fakes do not even know the order of a convolution's result.
        """
        results = self.facts.get_output_values(op)
        return (
            requires_traced_strides(op)
            or any(value.data_dependent for value in (*self.facts.get_input_values(op), *results))
            or requires_contiguous_input(op, self.facts)
            or self.is_less_exact(op)
            or (not self.generates_loops and has_size_dependent_gradient(op, self.facts))
            or (op.view and any(value.storage in self._kept_memory for value in results))
        )

    def is_less_exact(self, op: OpFacts) -> bool:
        """Return True for a norm that torch itself computes, less exactly in channels-last."""
        return not self.generates_loops and has_inexact_kernel(op, self.facts)

    def _can_change(self, op: OpFacts) -> bool:
        ambiguous = (
            op.node in self._around_ambiguous_images if self.generates_loops else reads_ambiguous_image(op, self.facts)
        )
        return not (ambiguous or self.keeps_its_strides(op))

    @cached_property
    def _around_ambiguous_images(self) -> frozenset[str]:
        """Convolutions of images of one computed channel, and their makers: Inductor and fakes disagree on strides."""
        found: set[str] = set()
        pending = [op for op in self.facts.ops if reads_ambiguous_image(op, self.facts)]
        while pending:
            op = pending.pop()
            if op.node not in found:
                found.add(op.node)
                images = (value for value in self.facts.get_input_values(op) if has_one_channel(value))
                pending.extend(maker for image in images if (maker := self.facts.get_producer(image.name)))
        return frozenset(found)

    @cached_property
    def anchors(self) -> tuple[OrderedOp, ...]:
        """The members whose kernels are faster in one order than in another."""
        return tuple(m for m in self.members if m.anchor and not (self.generates_loops and m.row.generated))

    @cached_property
    def loops(self) -> tuple[OrderedOp, ...]:
        """The members that would be anchors if the compiler did not write their loops."""
        return tuple(m for m in self.members if m.anchor and self.generates_loops and m.row.generated)

    @cached_property
    def constants(self) -> frozenset[str]:
        """The frozen inputs, and all values that Inductor computes from them alone when it freezes them."""
        known = set(self.frozen)
        for op in self.facts.ops:
            if op.inputs and known.issuperset(op.inputs) and _can_be_folded(op):
                known.update(op.outputs)
        return frozenset(known)

    @cached_property
    def doubtful(self) -> frozenset[str]:
        """Values whose strides may differ from their fakes' at run time; none under Inductor, whose code follows the
        fakes."""
        return frozenset() if self.generates_loops else find_unreliable_meta_strides(self.facts, self.uncertain_inputs)

    @property
    def generates_loops(self) -> bool:
        """True under Inductor. It writes pointwise operators and reductions as loops over any strides, and would itself
        choose one layout for all convolutions of the graph."""
        return self.inner == "inductor"


def _can_be_folded(op: OpFacts) -> bool:
    """Return False for what is computed in every call: custom operators, writes and random numbers."""
    overload = find_overload(op.target)
    random = overload is not None and torch.Tag.nondeterministic_seeded in overload.tags
    return not (op.mutates or op.opaque or random)


@dataclass(frozen=True)
class Rewrite:
    """One kind of rewrite.

    `propose` yields candidates and refusals. `apply` makes one and returns the names of the nodes that it inserted. It
    raises `RewriteError`, with the graph unchanged, if that cannot be done. `asks` yields the calls, in groups that are
    to be compared, whose times `propose` finds in `timed`.
    """

    name: str
    propose: Callable[[RewriteSubject], Iterator[Candidate | Refusal]]
    apply: Callable[[RewriteSubject, fx.GraphModule, Candidate], tuple[str, ...]]
    asks: Callable[[RewriteSubject], Iterator[tuple[OperatorSignature, ...]]] = lambda _subject: iter(())


def have_same_layout(*values: ValueFacts) -> bool:
    """Return True if all have the same shape, strides, dtype and device."""
    return len({(value.shape, value.strides, value.dtype, value.device) for value in values}) == 1

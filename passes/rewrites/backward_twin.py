"""The backward call that a convolution of a training forward will lead to, before its graph is there.

A forward that is laid out without a thought of its backward saves activations in an order that the backward may have to
convert again: so a convolution's layout is chosen by the time of both.
"""

from __future__ import annotations

from dataclasses import replace

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueRef
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, signature_of


def backward_twin(op: OpFacts, facts: GraphFacts) -> OperatorSignature | None:
    """The signature of the convolution's backward; None for other operators.

    The gradient of the input is left out where the input is the graph's own, as for a network's first convolution.
    """
    if op.operator != "aten.convolution" or not isinstance(op.args[0], ValueRef):
        return None
    image = facts.values[op.args[0].name]
    forward = signature_of(op, facts)
    result = facts.output_values(op)[0]
    bias = forward.args[2]
    gradient = TensorSpec(result.shape, result.strides, result.dtype, result.device.type)
    needs_input_gradient = image.producer is not None
    return replace(
        forward,
        target="aten.convolution_backward.default",
        args=(
            gradient,
            forward.args[0],
            forward.args[1],
            bias.shape if isinstance(bias, TensorSpec) else None,
            *forward.args[3:9],
            (needs_input_gradient, True, isinstance(bias, TensorSpec)),
        ),
    )

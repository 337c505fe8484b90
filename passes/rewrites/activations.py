"""Activations that oneDNN computes with the convolution or product in front of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_overload import argument_of


@dataclass(frozen=True, slots=True)
class Activation:
    """What oneDNN computes behind a convolution or product: its name there, numbers, and variant."""

    name: str = "none"
    numbers: tuple[float, ...] = ()
    variant: str = ""


def activation_of(op: OpFacts) -> Activation | None:
    """The operator as oneDNN knows it, if it does."""

    def number(name: str) -> float:
        value = argument_of(op, name)
        return float(value) if isinstance(value, (int, float)) else math.nan

    if op.symbolic:
        return None
    match op.operator:
        case "aten.relu" | "aten.sigmoid" | "aten.tanh" | "aten.hardswish" | "aten.hardsigmoid":
            found = Activation(op.operator.removeprefix("aten."))
        case "aten.silu":
            found = Activation("swish")
        case "aten.gelu":
            found = Activation("gelu", (), str(argument_of(op, "approximate")))
        case "aten.hardtanh":
            found = Activation("hardtanh", (number("min_val"), number("max_val")))
        case "aten.leaky_relu":
            found = Activation("leaky_relu", (number("negative_slope"),))
        case _:
            return None
    return None if any(map(math.isnan, found.numbers)) else found

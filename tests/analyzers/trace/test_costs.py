"""The table of pointwise operators is torch's."""

from __future__ import annotations

import torch
from torch._ops import OpOverload, OpOverloadPacket

from frx_graph.analyzers.trace.costs import POINTWISE_ARGUMENTS


def overloads(name: str) -> list[OpOverload]:
    packet = getattr(torch.ops.aten, name, None)
    return [getattr(packet, own) for own in packet.overloads()] if isinstance(packet, OpOverloadPacket) else []


def argument_count(name: str) -> int:
    return max(sum(not argument.is_out for argument in own._schema.arguments) for own in overloads(name))


def test_the_table_has_what_torch_tags_as_pointwise() -> None:
    registered = {
        schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas() if "aten::" in schema.name
    }
    names = {name for name in registered if name.isidentifier() and not name.startswith("__")}
    tagged = {name for name in names if any(torch.Tag.pointwise in own.tags for own in overloads(name))}
    assert len(tagged) > 200
    # An older torch tags fewer operators, some with fewer arguments; the table is that of the newest.
    assert tagged <= POINTWISE_ARGUMENTS.keys()
    assert all(argument_count(name) <= POINTWISE_ARGUMENTS[name] for name in tagged)
    if torch.__version__.startswith("2.15"):
        assert {name: argument_count(name) for name in tagged} == POINTWISE_ARGUMENTS

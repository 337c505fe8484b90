"""The fixers, in the order in which they are tried."""

from __future__ import annotations

from frx_graph.fix import (
    autocast,
    cancel_permutes,
    channels_last,
    convolution_padding,
    drop_copy,
    fused_attention,
)
from frx_graph.fix.fixer import Fixer

FIXERS: tuple[Fixer, ...] = (
    drop_copy.FIXER,
    cancel_permutes.FIXER,
    fused_attention.FIXER,
    convolution_padding.FIXER,
    channels_last.FIXER,
    autocast.FIXER,
)

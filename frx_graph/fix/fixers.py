"""The fixers, in the order in which they are tried."""

from __future__ import annotations

from frx_graph.fix import (
    attention_setting,
    autocast,
    cancel_permutes,
    channels_last,
    compile_region,
    convolution_padding,
    drop_copy,
    fused_attention,
    gradient_layout,
    plain_layout,
    share_copy,
    stored_weights,
)
from frx_graph.fix.fixer import Fixer

FIXERS: tuple[Fixer, ...] = (
    drop_copy.FIXER,
    share_copy.FIXER,
    cancel_permutes.FIXER,
    fused_attention.FIXER,
    attention_setting.FIXER,
    convolution_padding.FIXER,
    channels_last.FIXER,
    channels_last.REORDER_FIXER,
    stored_weights.FIXER,
    plain_layout.FIXER,
    gradient_layout.FIXER,
    autocast.FIXER,
    compile_region.FIXER,
)

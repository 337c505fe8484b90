"""All detectors, in the order in which they run. A new one is a file here, its card, its tests, and a line below."""

from __future__ import annotations

from frx_graph.passes.detectors import (
    backward_layout_lost,
    blocked_fusion,
    channels_last_harmful,
    channels_last_opportunity,
    contiguous_churn,
    hidden_copy,
    materialised_attention,
    memory_bound_region,
    permute_storm,
    stride_instability,
    unstable_graph,
    weight_reconversion,
)
from frx_graph.passes.detectors.detector import Detector

DETECTORS: tuple[Detector, ...] = (
    hidden_copy.DETECTOR,
    contiguous_churn.DETECTOR,
    permute_storm.DETECTOR,
    weight_reconversion.DETECTOR,
    backward_layout_lost.DETECTOR,
    channels_last_opportunity.DETECTOR,
    channels_last_harmful.DETECTOR,
    materialised_attention.DETECTOR,
    memory_bound_region.DETECTOR,
    blocked_fusion.DETECTOR,
    stride_instability.DETECTOR,
    unstable_graph.DETECTOR,
)

"""All detectors, in the order in which they run. A new one needs a file here, its card, its tests, and a line below."""

from __future__ import annotations

from frx_graph.passes.analysis import Detector
from frx_graph.passes.detectors import (
    backward_layout_lost,
    blocked_fusion,
    channels_last_harmful,
    channels_last_opportunity,
    contiguous_churn,
    hidden_copy,
    materialised_attention,
    memory_bound_region,
    misaligned_dimension,
    opaque_boundary,
    padding_copy,
    page_fault_churn,
    permute_storm,
    repeated_cast,
    stride_instability,
    unstable_graph,
    unused_precision,
    weight_reconversion,
)

DETECTORS: tuple[Detector, ...] = (
    hidden_copy.DETECTOR,
    contiguous_churn.DETECTOR,
    permute_storm.DETECTOR,
    channels_last_opportunity.DETECTOR,
    memory_bound_region.DETECTOR,
    stride_instability.DETECTOR,
    weight_reconversion.DETECTOR,
    backward_layout_lost.DETECTOR,
    blocked_fusion.DETECTOR,
    opaque_boundary.DETECTOR,
    misaligned_dimension.DETECTOR,
    materialised_attention.DETECTOR,
    unused_precision.DETECTOR,
    unstable_graph.DETECTOR,
    channels_last_harmful.DETECTOR,
    padding_copy.DETECTOR,
    repeated_cast.DETECTOR,
    page_fault_churn.DETECTOR,
)

"""Find convolutions that cuDNN computes on tensors in plain layout, in the log that its frontend writes.

cuDNN's kernels for half precision on tensor cores take channels-last tensors. For others it converts each operand
inside, or takes slower kernels ("Tensor Layouts", NVIDIA's convolution guide). What that costs is not in the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.evidence.cudnn_log import CudnnLog, CudnnOperation, CudnnTensor
from frx_graph.facts.layout import is_channels_last, is_contiguous
from frx_graph.passes import confidence
from frx_graph.records import Basis, Effort, Evidence, Finding, Risk, Saving, Severity
from frx_graph.support.plain_text import format_bytes

RULE = "FRX004"
_CONVOLUTIONS = {"CONV_FPROP": ("X", "Y"), "CONV_DGRAD": ("DY", "DX"), "CONV_WGRAD": ("X", "DY")}
"""The images of each kind of convolution, by port."""
_SOURCE = "cuDNN frontend's log"
_BYTES = {"HALF": 2, "BFLOAT16": 2, "FLOAT": 4, "TF32": 4, "INT8": 1, "FP8_E4M3": 1, "FP8_E5M2": 1}
_ON_TENSOR_CORES = frozenset(["HALF", "BFLOAT16", "FP8_E4M3", "FP8_E5M2", "INT8"])


def find_plain_convolutions(log: CudnnLog) -> Iterator[Finding]:
    """Yield a finding for each convolution on an image in plain layout."""
    for operation, count in log.operations.items():
        images = [image for port in _CONVOLUTIONS.get(operation.kind, ()) if (image := operation.get(port))]
        plain = [image for image in images if _is_plain(image)]
        if plain:
            yield _build_finding(operation, plain, count)


def _is_plain(image: CudnnTensor) -> bool:
    # With one channel, or one pixel, both layouts are the same.
    return is_contiguous(image.shape, image.strides) and not is_channels_last(image.shape, image.strides)


def _build_finding(operation: CudnnOperation, plain: list[CudnnTensor], count: int) -> Finding:
    first = plain[0]
    cores = first.dtype in _ON_TENSOR_CORES
    sizes = [math.prod(one.shape) * _BYTES[one.dtype] for one in plain if one.dtype in _BYTES]
    moved = f", each with {format_bytes(sum(sizes))} of such images" if len(sizes) == len(plain) else ""
    shape = "×".join(map(str, first.shape))
    why = (
        "kernels on tensor cores take channels-last" if cores else "only kernels for lower precision need channels-last"
    )
    return Finding(
        rule=RULE,
        title=f"{operation.kind} on {first.dtype} tensors in plain layout, {shape}",
        severity=Severity.MEDIUM if cores else Severity.LOW,
        site=UNKNOWN_SITE,
        nodes=(),
        # A log tells which graphs were built, not which of them a step runs.
        count_per_step=None,
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix="keep images in channels-last from end to end: `model.to(memory_format=torch.channels_last)`, and the same "
        "for the input; in cuDNN's frontend, give the tensors strides in the order N, H, W, C",
        confidence=confidence.MODELLED if cores else confidence.ASSUMED,
        basis=Basis.OBSERVED,
        evidence=(
            *(
                Evidence(
                    f"{one.port}: {list(one.shape)} with strides {list(one.strides)}; {why}", _SOURCE, Basis.OBSERVED
                )
                for one in plain
            ),
            Evidence(f"in {count:,} {'graph' if count == 1 else 'graphs'}{moved}", _SOURCE, Basis.OBSERVED),
        ),
    )

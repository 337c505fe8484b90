"""Let a model compute in a narrower dtype, by `torch.autocast` around its `forward` (FRX013).

Results change by rounding, so the change needs `--unsafe-fixes`, and the tolerances of fp32, by which a
trial judges it, refuse most of such changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.imports import name_torch
from frx_graph.fix.source_file import CannotFixError
from frx_graph.passes.detectors.unused_precision import choose_faster_dtype
from frx_graph.records import SourceEdit


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the insertion of a decorator."""
    if subject.root is None:
        raise CannotFixError("the model is of a class of torch: call it under `torch.autocast`")
    if subject.analysis.facts.train:
        raise CannotFixError("training in a narrower dtype takes more than a decorator")
    source = subject.files.get(subject.root.file)
    forward = source.find_function(subject.root)
    device = next(iter(subject.analysis.facts.values.values())).device.type
    if subject.analysis.device is None:
        raise CannotFixError("the speed of each dtype is not known")
    dtype = str(choose_faster_dtype(subject.analysis.device.peak_flops)).removeprefix("torch.")
    torch, imported = name_torch(source)
    decorator = f'@{torch}.autocast("{device}", dtype={torch}.{dtype})'
    if any("autocast" in source.get_text(one) for one in forward.decorators):
        raise CannotFixError("its `forward` is decorated with autocast already")
    return [*imported, source.insert_before(forward, [decorator])]


FIXER = Fixer("FRX013", "autocast", propose, unsafe=True)

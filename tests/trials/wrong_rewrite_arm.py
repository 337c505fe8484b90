"""An arm of a trial in which one rewrite is wrong: `python wrong_rewrite_arm.py value|stride|failure`."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from frx_graph.compiler import rewrite_pipeline
from frx_graph.passes.rewrites import propagate_layout
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate
from frx_graph.trial_worker.__main__ import main


def build() -> tuple[nn.Module, tuple[Tensor]]:
    """The target of the trial."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    return nn.Sequential(*layers).eval(), (torch.randn(2, 8, 12, 12),)


def spoiled(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """What the rewrite makes, and a hundredth more of the first result, or that with its last dimensions the other way
    round in memory, or with a shape that it cannot have."""
    made = propagate_layout.REWRITE.apply(subject, module, candidate)
    output = module.graph.output_node()
    first = output.args[0][0]
    with module.graph.inserting_before(output):
        if sys.argv[1] == "value":
            wrong = module.graph.call_function(torch.ops.aten.mul.Scalar, (first, 1.01))
            wrong.meta["val"] = first.meta["val"]
        elif sys.argv[1] == "failure":
            wrong = module.graph.call_function(torch.ops.aten.view.default, (first, [7, 7]))
            wrong.meta["val"] = first.meta["val"]
        else:
            turned = module.graph.call_function(torch.ops.aten.permute.default, (first, [0, 1, 3, 2]))
            turned.meta["val"] = first.meta["val"].transpose(-1, -2)
            memory = {"memory_format": torch.contiguous_format}
            copied = module.graph.call_function(torch.ops.aten.clone.default, (turned,), memory)
            copied.meta["val"] = turned.meta["val"].contiguous()
            wrong = module.graph.call_function(torch.ops.aten.permute.default, (copied, [0, 1, 3, 2]))
            wrong.meta["val"] = copied.meta["val"].transpose(-1, -2)
    output.args = ((wrong, *output.args[0][1:]),)
    return made


if __name__ == "__main__":
    wrong_rewrite = replace(propagate_layout.REWRITE, apply=spoiled)
    rewrite_pipeline.REWRITES = tuple(
        wrong_rewrite if rewrite.name == propagate_layout.NAME else rewrite for rewrite in rewrite_pipeline.REWRITES
    )
    main()

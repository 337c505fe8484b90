"""A short training run whose images are slow to read: what `frx collect`, `frx analyze` and `frx tune` are shown with.

    frx collect -- python examples/train.py     records it in a bundle
    frx analyze runs/run-<id>                   says that it waits for its input
    frx tune -- python examples/train.py        finds how many workers it wants, and proves it

Nothing but torch is needed.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import frx_graph
from frx_graph import tuning

CLASSES = 10
BATCH = 16


class Photographs(Dataset[tuple[Tensor, int]]):
    """Images that are made as they are asked for, and scaled down, which takes as long as decoding a photograph."""

    def __init__(self, side: int = 512) -> None:
        self.side = side

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image, (3, 64, 64), and its class: the brighter, the higher."""
        drawn = torch.Generator().manual_seed(index)
        label = index % CLASSES
        photograph = torch.rand(1, 3, self.side, self.side, generator=drawn) + label / CLASSES
        image = functional.interpolate(photograph, size=(64, 64), mode="bilinear", antialias=True)
        return image[0], label


def network() -> nn.Module:
    """A small classifier of (batch, 3, 64, 64)."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description="A short training run whose images are slow to read.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--side", type=int, default=512, help="pixels of a photograph's side")
    given = parser.parse_args()

    torch.manual_seed(0)
    frx_graph.init(job_name="photographs")
    loader = DataLoader(
        Photographs(given.side), batch_size=tuning.batch_size(BATCH), **tuning.loader_options(num_workers=0)
    )
    model = tuning.prepare(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = frx_graph.AutopilotSession.from_env()
    steps = tuning.max_steps() or given.steps
    for step, (images, labels) in enumerate(itertools.islice(session.instrument(loader), steps)):
        with frx_graph.step_context(step=step, batch=(images, labels), model=model) as this:
            with session.forward_span():
                loss = functional.cross_entropy(model(images), labels)
            with session.backward_span():
                optimizer.zero_grad()
                loss.backward()
            with session.optimizer_span():
                optimizer.step()
            this.record(loss=loss)
    print(f"{steps} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

"""Train a model with planted slowness, for `benchmarks/tune_truth.py` to tune.

- Its samples wait, as for a disk, before they are there: workers wait in their place.
- Its model is convolutions and a pooling that is faster on channels-last tensors, on the processors that this was tried
  on: there a vector holds the channels.
- It reads `FRX_TUNED_NOOP`, and does nothing with it.

    python benchmarks/tuned_training.py --steps 200
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import frx_graph
from frx_graph import tuning

BATCH, SIDE, IMAGES = 8, 32, 64
WAIT_MS = 8.0
"""For a batch, without workers."""


class SlowImages(Dataset[tuple[torch.Tensor, int]]):
    """Images that are there only after a while."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait = wait_seconds
        self._images = torch.randn(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(self._wait)
        return self._images[number % IMAGES], number % 10


def model(channels: int, blocks: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for _ in range(blocks):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(channels, channels, 1), nn.AvgPool2d(3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1 << 30)
    parser.add_argument("--wait-ms", type=float, default=WAIT_MS)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="print milliseconds of a step, batch to batch")
    options = parser.parse_args()
    os.environ.get("FRX_TUNED_NOOP")
    torch.manual_seed(0)
    # One thread each for the model and what brings its batches.
    torch.set_num_threads(1)
    size = tuning.batch_size(BATCH)
    loader = frx_graph.instrument_dataloader(
        DataLoader(SlowImages(options.wait_ms / 1e3 / BATCH), batch_size=size, **tuning.loader_options())
    )
    network = tuning.prepare(model(options.channels, options.blocks))
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    most = min(options.steps, tuning.max_steps() or options.steps)
    ends = []
    for step, (images, labels) in enumerate(loader):
        if step == most:
            break
        with frx_graph.step_context(step, images, network) as recorded:
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.record(loss=loss)
        ends.append(time.perf_counter())
    if options.times:
        skip = len(ends) // 4
        print(1e3 * (ends[-1] - ends[skip]) / (len(ends) - 1 - skip))


if __name__ == "__main__":
    main()

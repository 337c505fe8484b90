"""Whether two nodes are alike: what is measured on one of them goes for the other."""

from __future__ import annotations

import hashlib

import torch

from frx_graph.compiler.environment_key import environment_key
from frx_graph.measure.machine.device_state import gpu_names
from frx_graph.trials.environment import trial_setup


def node_environment() -> str:
    """Sixteen hexadecimal digits of this node's processor, versions, settings and GPUs. CUDA is not initialised: that
    would take memory of the GPU that something is to be measured on."""
    setup = environment_key(trial_setup(torch.device("cpu")))
    return hashlib.sha256(" ".join((setup, *gpu_names())).encode()).hexdigest()[:16]

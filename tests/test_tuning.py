from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from frx_graph import tuning


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("FRX_")]:
        monkeypatch.delenv(name)


def test_without_variables_the_script_values_are_used():
    model = torch.nn.Conv2d(1, 1, 1)
    assert tuning.max_steps() is None
    assert tuning.batch_size(32) == 32
    assert tuning.loader_options() == {"num_workers": 0, "pin_memory": False}
    assert tuning.loader_options(num_workers=2, pin_memory=True, prefetch_factor=3, persistent_workers=True) == {
        "num_workers": 2, "pin_memory": True, "prefetch_factor": 3, "persistent_workers": True,
    }  # fmt: skip
    assert tuning.prepare(model) is model
    assert tuning.amp_dtype() is None
    assert not tuning.grad_scaler("cpu").is_enabled()
    with tuning.autocast("cpu"):
        assert not torch.is_autocast_enabled("cpu")


def test_variables_count_more_and_a_loader_takes_them(monkeypatch):
    monkeypatch.setenv("FRX_NUM_WORKERS", "2")
    monkeypatch.setenv("FRX_PREFETCH_FACTOR", "4")
    monkeypatch.setenv("FRX_PERSISTENT_WORKERS", "true")
    monkeypatch.setenv("FRX_PIN_MEMORY", "false")
    loader = DataLoader(range(8), **tuning.loader_options(num_workers=1, pin_memory=True))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, True)
    assert not loader.pin_memory


def test_without_workers_what_needs_them_is_left_out(monkeypatch):
    monkeypatch.setenv("FRX_NUM_WORKERS", "0")
    monkeypatch.setenv("FRX_PREFETCH_FACTOR", "4")
    options = tuning.loader_options(num_workers=2, prefetch_factor=2, persistent_workers=True)
    assert DataLoader(range(8), **options).num_workers == 0


@pytest.mark.parametrize("given", ["", "-1", "x", "1.5", "²", "9" * 30])
def test_non_numeric_variables_are_ignored(monkeypatch, given):
    monkeypatch.setenv("FRX_BATCH_SIZE", given)
    monkeypatch.setenv("FRX_TUNE_MAX_STEPS", given)
    assert tuning.batch_size(32) == 32
    assert tuning.max_steps() is None


def test_steps_and_batches(monkeypatch):
    monkeypatch.setenv("FRX_BATCH_SIZE", "48")
    monkeypatch.setenv("FRX_TUNE_MAX_STEPS", "25")
    assert (tuning.batch_size(32), tuning.max_steps()) == (48, 25)


def test_precision(monkeypatch):
    monkeypatch.setenv("FRX_AMP_DTYPE", "bfloat16")
    with tuning.autocast("cpu"):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype is torch.bfloat16
    monkeypatch.setenv("FRX_AMP_DTYPE", "float64")
    assert tuning.amp_dtype() is None


def test_channels_last(monkeypatch):
    monkeypatch.setenv("FRX_CHANNELS_LAST", "true")
    model = torch.nn.Conv2d(4, 4, 3)
    assert tuning.prepare(model) is model
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    monkeypatch.setenv("FRX_CHANNELS_LAST", "false")
    other = torch.nn.Conv2d(4, 4, 3)
    assert tuning.prepare(other).weight.is_contiguous()


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"FRX_TORCH_COMPILE": "true"}, {}),
        ({"FRX_TORCH_COMPILE": "1", "FRX_TORCH_COMPILE_MODE": "max-autotune"}, {"mode": "max-autotune"}),
        ({"FRX_CUDA_GRAPHS": "try_if_static_shapes"}, {"mode": "reduce-overhead", "dynamic": False}),
        (
            {"FRX_TORCH_COMPILE": "1", "FRX_TORCH_COMPILE_BACKEND": "frx"},
            {"backend": "frx", "options": {"mode": "apply"}},
        ),
        (
            {"FRX_TORCH_COMPILE": "1", "FRX_TORCH_COMPILE_BACKEND": "frx", "FRX_BACKEND_MODE": "autopilot"},
            {"backend": "frx", "options": {"mode": "autopilot"}},
        ),
    ],
)
def test_compilation(monkeypatch, variables, options):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **given: asked.append(given) or model)
    tuning.prepare(torch.nn.Linear(1, 1))
    assert asked == [options]


def test_a_script_that_asks_pays_for_nothing_else():
    code = (
        "import sys\nfrom frx_graph import tuning\n"
        "tuning.loader_options(); tuning.batch_size(1); tuning.max_steps(); tuning.autocast('cuda')\n"
        "tuning.prepare(1)\n"
        "print(sorted(name for name in sys.modules if name.startswith(('frx_graph', 'torch', 'pydantic'))))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRX_")}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "['frx_graph', 'frx_graph.tuning', 'frx_graph.version']"

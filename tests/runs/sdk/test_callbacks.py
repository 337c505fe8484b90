"""The real trainers of Hugging Face and Lightning, told of in one line, on a tiny model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Recorded = Callable[..., list[dict[str, Any]]]

pytestmark = [pytest.mark.integration, pytest.mark.zoo]


def huggingface_run(folder: Path, *, fail: bool = False, **arguments: Any) -> tuple[Any, Any]:
    """The trainer, and what its callback's hooks left in the model."""
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
    from transformers.modeling_outputs import SequenceClassifierOutput

    from frx_graph.callbacks.huggingface import FrxCallback

    class Config(PretrainedConfig):  # type: ignore[misc]
        model_type = "tiny"

    class Model(PreTrainedModel):  # type: ignore[misc]
        config_class = Config

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.linear = nn.Linear(4, 2)
            self.post_init()

        def forward(self, x: Any, labels: Any = None) -> Any:
            if fail:
                raise FloatingPointError("the model's")
            scores = self.linear(x)
            return SequenceClassifierOutput(loss=functional.cross_entropy(scores, labels), logits=scores)

    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": i % 2} for i in range(24)]
    given = {"max_steps": 4, "per_device_train_batch_size": 3, "logging_steps": 1, "eval_strategy": "steps"}
    settings = TrainingArguments(
        str(folder / "out"),
        **{**given, "eval_steps": 2, "disable_tqdm": True, "report_to": [], "use_cpu": True, **arguments},
        save_strategy="no",
    )
    model = Model(Config())
    trainer = Trainer(model, settings, train_dataset=data, eval_dataset=data, callbacks=[FrxCallback()])
    trainer.train()
    return trainer, model


def test_huggingface_trainer(recorded: Recorded, tmp_path: Path) -> None:
    trainer, model = huggingface_run(tmp_path)
    ends = recorded("step_end")
    assert [event["step_id"] for event in ends] == [0, 1, 2, 3]
    assert {event["payload"]["status"] for event in ends} == {"ok"}
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [event["payload"]["loss"] for event in ends] == pytest.approx([float(loss) for loss in logged], abs=1e-3)
    batch, parameters = [event["payload"] for event in recorded("shape_snapshot")]
    assert (batch["of"], batch["shapes"]) == ("batch", {"x": [3, 4], "labels": [3]})
    assert (parameters["of"], parameters["model_name"]) == ("parameters", "Model")
    assert {event["payload"]["batch_layout"] for event in ends} == {0}
    phases = [(event["step_id"], event["payload"]["phase_name"]) for event in recorded("phase_span")]
    assert phases == [(step, phase) for step in range(4) for phase in ("forward", "optimizer")]
    waits = [event for event in recorded("dataloader_span") if event["payload"]["stage"] == "next"]
    assert len(waits) == 4
    starts = recorded("step_start")
    for wait, start in zip(waits, starts, strict=True):
        assert wait["timestamp_ns"] <= start["timestamp_ns"]
    # Hooks and the loader's class go with the training.
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    told = len(recorded("dataloader_span"))
    next(iter(trainer.callback_handler.train_dataloader))
    assert len(recorded("dataloader_span")) == told


def test_huggingface_accumulated_gradients_are_one_step(recorded: Recorded, tmp_path: Path) -> None:
    trainer, _ = huggingface_run(tmp_path, gradient_accumulation_steps=2)
    ends = recorded("step_end")
    logged = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert len(ends) == 4
    assert [event["payload"]["loss"] for event in ends] == pytest.approx(logged, abs=1e-3)
    waits = [event for event in recorded("dataloader_span") if event["payload"]["stage"] == "next"]
    assert len(waits) == 8


def test_huggingface_training_that_fails_passes_its_error(recorded: Recorded, tmp_path: Path) -> None:
    from frx_graph.callbacks.huggingface import FrxCallback
    from frx_graph.runs.sdk.step import HERE

    with pytest.raises(FloatingPointError, match="the model's"):
        huggingface_run(tmp_path, fail=True)
    assert len(recorded("step_start")) == 1
    assert recorded("step_end") == []
    assert isinstance(FrxCallback(), FrxCallback)
    HERE.step = None


def test_huggingface_records_nothing_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, model = huggingface_run(tmp_path, max_steps=1)
    assert not model._forward_hooks
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.filterwarnings("ignore")
def test_lightning_trainer(package: str, recorded: Recorded, tmp_path: Path) -> None:
    pl = pytest.importorskip(package)
    from frx_graph.callbacks.lightning import FrxCallback

    losses = []

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = functional.cross_entropy(self.linear(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.linear(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.arange(24) % 2), batch_size=6)
    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[FrxCallback()],
    )
    trainer.fit(Model(), loader, loader)
    ends = recorded("step_end")
    assert [event["step_id"] for event in ends] == list(range(8))
    assert [event["payload"]["loss"] for event in ends] == losses
    assert {event["payload"]["batch_layout"] for event in ends} == {0}
    phases = [event["payload"]["phase_name"] for event in recorded("phase_span")]
    assert phases == ["forward", "backward", "optimizer"] * 8
    assert {event["step_id"] for event in recorded("phase_span")} == set(range(8))
    waits = [event for event in recorded("dataloader_span") if event["payload"]["stage"] == "next"]
    assert len(waits) >= 8
    assert recorded("shape_snapshot")[0]["payload"]["shapes"] == {"0": [6, 4], "1": [6]}
    assert not {"start", "stop"} & set(vars(trainer.profiler))


@pytest.mark.filterwarnings("ignore")
def test_failed_lightning_step_is_recorded_as_an_error(recorded: Recorded, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from frx_graph.callbacks.lightning import FrxCallback

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def training_step(self, batch: Any, index: int) -> Any:
            raise FloatingPointError("the model's")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=1, accelerator="cpu", **off, callbacks=[FrxCallback()])
    with pytest.raises(FloatingPointError, match="the model's"):
        trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(4, 4))))
    (end,) = recorded("step_end")
    assert end["payload"]["status"] == "error"
    assert not {"start", "stop"} & set(vars(trainer.profiler))


@pytest.mark.parametrize(
    ("module", "missing", "advice"),
    [
        ("huggingface", ("transformers",), "pip install transformers"),
        ("lightning", ("lightning", "lightning.pytorch", "pytorch_lightning"), "pip install lightning"),
    ],
)
def test_missing_library_is_reported_in_one_line(module: str, missing: tuple[str, ...], advice: str) -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        f"try:\n    import frx_graph.callbacks.{module}\n"
        "except ImportError as error:\n    print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert advice in ran.stdout
    assert ran.stdout.count("\n") == 1

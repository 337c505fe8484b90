"""Record runs of Hugging Face's `Trainer`: `Trainer(..., callbacks=[FrxCallback()])`.

A step is a step of the optimizer. Waits for batches and their layouts are recorded as the Trainer iterates its loader.
The loss and the times of forward passes come from hooks of the model. A compiled model gets no hooks, since they would
be compiled with it, so the losses are unknown. They are also unknown if the Trainer computes the loss instead of the
model, as with `label_smoothing_factor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from frx_graph.errors import summarize_error
from frx_graph.runs.sdk.recording_settings import warn_once
from frx_graph.runs.sdk.session import AutopilotSession
from frx_graph.runs.sdk.step import Step

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"frx_graph.callbacks.huggingface needs transformers: pip install transformers ({error})"
    ) from None


class FrxCallback(TrainerCallback):  # type: ignore[misc]  # its own annotations are not read
    """Records the steps of a `Trainer.train()` if the `FRX_` variables ask for it, and otherwise does nothing."""

    def __init__(self) -> None:
        self._session: AutopilotSession | None = None
        self._training = contextlib.ExitStack()
        self._step: Step | None = None
        self._forward: AbstractContextManager[None] | None = None
        self._optimizer: AbstractContextManager[None] | None = None
        self._batch: Any = None
        self._losses: list[Any] = []
        self._parts = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to time the loader and to listen to the model."""
        self._end(failed=True)
        session = AutopilotSession.from_env()
        if session.recorder is None:
            return
        self._session = session
        loader: Any = kwargs.get("train_dataloader")
        model: Any = kwargs.get("model")
        if loader is not None:
            self._training.enter_context(session.time_in_place(loader, self._note_batch))
        if hasattr(model, "register_forward_hook") and not _is_compiled(model, args):
            before = model.register_forward_pre_hook(self._begin_forward, prepend=True, with_kwargs=True)
            self._training.callback(before.remove)
            self._training.callback(model.register_forward_hook(self._end_forward, with_kwargs=True).remove)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins; its batches have come."""
        if self._session is None:
            return
        batch, self._batch = self._batch, None
        self._losses.clear()
        self._step = self._session.step(state.global_step, "train", batch=batch, model=kwargs.get("model"))
        self._step.__enter__()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer begins."""
        if self._session is not None:
            self._optimizer = self._session.optimizer_span()
            self._optimizer.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has ended."""
        if self._optimizer is not None:
            self._optimizer.__exit__(None, None, None)
            self._optimizer = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step has ended."""
        if self._step is not None:
            self._step.record(loss=self._combine_losses())
            self._step.__exit__(None, None, None)
            self._step = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the remaining events."""
        self._end(failed=False)

    def _note_batch(self, batch: Any) -> None:
        """A batch reaches the Trainer, before its step begins."""
        if self._batch is None:
            self._batch = batch
        elif self._session is not None and self._session.recorder is not None:
            # Gradients are accumulated over several, which are one batch to the optimizer.
            self._session.recorder.record_layouts(None, batch, None)

    def _begin_forward(self, _module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        if self._step is not None and self._session is not None:
            # The Trainer divides by the size of all batches of the step, so that their losses add up.
            self._parts = kwargs.get("num_items_in_batch") is not None
            self._forward = self._session.forward_span()
            self._forward.__enter__()

    def _end_forward(self, _module: Any, _args: Any, _kwargs: dict[str, Any], output: Any) -> None:
        if self._forward is None:
            return
        self._forward.__exit__(None, None, None)
        self._forward = None
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is not None and hasattr(loss, "detach"):
            self._losses.append(loss.detach())

    def _combine_losses(self) -> Any:
        """Return the step's loss as a tensor, without waiting for it."""
        losses = self._losses
        try:
            if len(losses) < 2:
                return losses[0] if losses else None
            total = sum(losses[1:], losses[0])
            return total if self._parts else total / len(losses)
        except Exception as error:  # noqa: BLE001 - a model's losses may be anything
            warn_once(f"losses of some steps are not recorded: {summarize_error(error)}")
            return None
        finally:
            losses.clear()

    def _end(self, *, failed: bool) -> None:
        """End the training. An exception ends it without a callback, so the next training ends the open one."""
        self._training.close()
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(RuntimeError if failed else None, None, None)
        self._forward = self._optimizer = self._batch = None
        self._losses.clear()
        if self._session is not None:
            self._session.flush()
        self._session = None


def _is_compiled(model: Any, args: Any) -> bool:
    from frx_graph.support.torch_internals import is_compiled_module

    return bool(getattr(args, "torch_compile", False)) or is_compiled_module(model)

"""Record runs of Lightning's `Trainer` (`lightning` or `pytorch_lightning`): `Trainer(..., callbacks=[FrxCallback()])`.

A step is one batch. Lightning's calls of the profiler give the exact times of waiting for batches, copying them, the
forward and backward pass, and the optimizer. The profiler keeps working.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from frx_graph.runs.sdk.session import AutopilotSession
from frx_graph.runs.sdk.step import Step

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:

    def _import_callback() -> type:
        """Return the class of the package that the program uses: both may be installed, each with its own classes."""
        packages = ("lightning.pytorch", "pytorch_lightning")
        for name in [*(name for name in packages if name in sys.modules), *packages]:
            try:
                return importlib.import_module(name).Callback
            except ImportError as error:
                said = error
        raise ImportError(f"frx_graph.callbacks.lightning needs lightning: pip install lightning ({said})")

    Callback = _import_callback()

_NEXT_BATCH = ".train_dataloader_next"
_TO_DEVICE = ".batch_to_device"
_FORWARD = ".training_step"
_BACKWARD = ".backward"
_OPTIMIZER = ".optimizer_step"


class FrxCallback(Callback):  # type: ignore[misc]  # its own annotations are not read
    """Records the batches of a `Trainer.fit()` if the `FRX_` variables ask for it, and otherwise does nothing."""

    def __init__(self) -> None:
        self._session: AutopilotSession | None = None
        self._step: Step | None = None
        self._spans: dict[str, AbstractContextManager[None]] = {}
        self._profiler: Any = None
        self._on_cpu = True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to listen to the calls of the profiler."""
        session = AutopilotSession.from_env()
        if session.recorder is None:
            return
        self._session = session
        self._on_cpu = getattr(getattr(trainer.strategy, "root_device", None), "type", "cpu") == "cpu"
        self._listen_to(trainer.profiler)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A step begins."""
        if self._session is not None:
            number = getattr(trainer.fit_loop, "total_batch_idx", None)
            self._step = self._session.step(number, "train", batch=batch, model=pl_module)
            self._step.__enter__()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The optimizer begins; the profiler's own span begins before the forward pass, which runs inside of it."""
        if self._session is not None:
            self._begin(_OPTIMIZER, self._session.optimizer_span())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The step has ended."""
        if self._step is not None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            self._step.record(loss=loss)
            self._leave_step(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The step has failed."""
        self._leave_step(type(exception))
        self._end()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the remaining events."""
        self._end()

    def _leave_step(self, failed: type[BaseException] | None) -> None:
        step, self._step = self._step, None
        self._spans.clear()
        if step is not None:
            step.__exit__(failed, None, None)

    def _listen_to(self, profiler: Any) -> None:
        start, stop = profiler.start, profiler.stop

        def start_action(action_name: str) -> Any:
            result = start(action_name)
            self._begin_action(action_name)
            return result

        def stop_action(action_name: str) -> Any:
            self._end_action(action_name)
            return stop(action_name)

        # On the object, so that its class, which Lightning checks, stays the same.
        profiler.start, profiler.stop = start_action, stop_action
        self._profiler = profiler

    def _begin_action(self, action: str) -> None:
        session = self._session
        if session is None:
            return
        if action.endswith(_NEXT_BATCH):
            self._begin(_NEXT_BATCH, session.dataloader_span())
        elif action.endswith(_TO_DEVICE) and not self._on_cpu:
            self._begin(_TO_DEVICE, session.copy_span("h2d"))
        elif self._step is not None and action.startswith("[Strategy]"):
            if action.endswith(_FORWARD):
                self._begin(_FORWARD, session.forward_span())
            elif action.endswith(_BACKWARD):
                self._begin(_BACKWARD, session.backward_span())

    def _end_action(self, action: str) -> None:
        _, dot, name = action.rpartition(".")
        span = self._spans.pop(dot + name, None)
        if span is not None:
            span.__exit__(None, None, None)

    def _begin(self, action: str, span: AbstractContextManager[None]) -> None:
        self._spans[action] = span
        span.__enter__()

    def _end(self) -> None:
        self._leave_step(None)
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            del profiler.start, profiler.stop
        if self._session is not None:
            self._session.flush()
        self._session = None

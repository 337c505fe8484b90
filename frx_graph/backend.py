"""`torch.compile(model, backend="frx")`: record what Dynamo compiles, and compile it as the inner backend would.

Nothing here may break the user's program: recording never raises, and one warning reports any failure. Torch loads this
module through the `torch_dynamo_backends` entry point; it must not also register itself.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx

from frx_graph.capture.absent_gpu import capture_for
from frx_graph.capture.captured_graph import Capture, CaptureFailure, select_current_versions
from frx_graph.capture.recorder import GraphRecorder
from frx_graph.capture.tracing_context import disable_guards
from frx_graph.compiler.inner_compiler import make_frozen_planned_backend, make_planned_backend
from frx_graph.compiler.plans import make_current_plan
from frx_graph.compiler.pre_autograd import Compiled
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.compiler.rewritten_graphs import RewrittenGraphs
from frx_graph.distributed.handshake import may_have_plans
from frx_graph.errors import AgreementError, CaptureError, OptionError, SerializationError, TrialError, summarize_error
from frx_graph.monitor.monitored_program import make_monitored_backend
from frx_graph.options import PLANNED, BackendOptions, check_together, parse_backend_options
from frx_graph.plan import Plan
from frx_graph.rules.gpu_profile import GpuProfile, require_gpu
from frx_graph.support.allocator import pool_allocations
from frx_graph.support.user_warning import WarnOnce, warn_user

if TYPE_CHECKING:
    from frx_graph.advice import AutopilotSearch
    from frx_graph.promotion.lookup import PromotedPlans
    from frx_graph.promotion.promoted_plan import Promotion
    from frx_graph.reports.advice.render import AdviceReport

_CALLS_NOT_COUNTED = CaptureFailure(
    "calls per step",
    "the runs of a compiled graph are not counted: each counts as one run per step, even if it serves many "
    "modules; frx_graph.advise(model, args) counts them",
)
_NOT_POOLED = (
    "frx could not pool memory: the process does not use glibc's allocator with its default settings; your program is "
    "unaffected"
)


class _Session:
    """The graphs that the process has compiled through the backend so far."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._recorder = GraphRecorder("process")
        self.gpu: GpuProfile | None = None
        """The GPU that the advice is for; None: the devices that graphs are on."""
        self._print_at_exit = False
        self.warnings = WarnOnce()
        self._promoted: PromotedPlans | None = None
        self._unrecorded: list[tuple[Promotion, str]] = []

    def record(self, dynamo: fx.GraphModule, example_inputs: Sequence[Any], options: BackendOptions) -> None:
        with self._lock:
            if options.mode == "advise" and not self._print_at_exit:
                self._print_at_exit = True
                atexit.register(self._print)
            if options.gpu is not None:
                self._record_for_gpu(require_gpu(options.gpu), dynamo, example_inputs, options.inner)
            elif self.gpu is None:
                self._recorder.record(dynamo, example_inputs, options.inner)

    def _record_for_gpu(
        self, gpu: GpuProfile, dynamo: fx.GraphModule, example_inputs: Sequence[Any], inner: str
    ) -> None:
        # Imported for those who ask for it: this takes half a second.
        from frx_graph.advisor.absent_gpu import describe_absent, place_graph_on_absent_gpu

        graph = self._recorder.note(dynamo, example_inputs)
        try:
            with disable_guards(graph.get_fake_mode()):
                placed = place_graph_on_absent_gpu(graph)
        except Exception as error:  # noqa: BLE001 - the report says that this graph is missing
            self._recorder.fail(f"graph {graph.graph_id}", summarize_error(error), graph.caller)
            return
        with placed.get_fake_mode(), capture_for(describe_absent(gpu)):
            self._recorder.trace(placed, inner=inner)

    def choose_gpu(self, options: BackendOptions) -> None:
        """Let the advice be for the GPU of the options, if any. Raises `OptionError` if it is for another one already,
        and if this torch knows no GPUs."""
        if options.gpu is None:
            return
        from frx_graph.advisor.absent_gpu import check_build

        check_build()
        gpu = require_gpu(options.gpu)
        with self._lock:
            if self.gpu is None:
                self.gpu, self._recorder = gpu, GraphRecorder("process")
            elif self.gpu != gpu:
                raise OptionError(
                    f"this process already advises for {self.gpu.name}, not {gpu.name}",
                    "one GPU a process, or frx_graph.clear() before",
                )

    def find_promotion(
        self, dynamo: fx.GraphModule, example_inputs: Sequence[Any], options: BackendOptions
    ) -> Promotion | None:
        """Return the plan that trials have proved for this graph; None, after a warning, if it cannot be looked up."""
        if options.mode == "advise" or options.inner not in PLANNED or options.inner_options:
            # Trials compile without Inductor's options, so that they prove nothing for programs with them.
            return None
        try:
            if options.mode == "apply" and not may_have_plans(options):
                return None
            # Importing a database library takes a quarter of a second. Do it only if there may be a ledger.
            from frx_graph.promotion.lookup import PromotedPlans

            self._promoted = self._promoted or PromotedPlans()
            return self._promoted.find(dynamo, example_inputs, options)
        except AgreementError as error:
            topic = "ranks"
            said = f"frx: the ranks do not agree on the promoted plan: {error}; all compile the graph without rewrites"
        except (SerializationError, TrialError) as error:
            topic = "trial"
            said = f"frx could not try a graph ({error}); it compiles this one, and others like it, without rewrites"
        except Exception as error:
            if type(error).__module__ == "pydantic_core._pydantic_core" and "KeyboardInterrupt" in str(error):
                # Pydantic turns an interrupt while it builds a schema into an error that only names it.
                raise KeyboardInterrupt from error
            topic = "ledger"
            said = f"frx could not look up promoted plans ({error}); it compiles graphs without rewrites"
        self.warnings.warn(topic, f"{said}, and your program is unaffected")
        return None

    def make_monitored_compiler(self, promotion: Promotion, options: BackendOptions) -> Compiled:
        """Return a compiler that applies the promoted plan and monitors the program."""

        roll_back = partial(self._roll_back, promotion)

        def report_failure(error: Exception) -> None:
            roll_back(f"it failed where the baseline does not: {summarize_error(error)}")

        return make_monitored_backend(
            make_planned_backend(options, promotion.plan, report_failure),
            make_planned_backend(options, None, report_failure),
            policy=promotion.subject.policy,
            promise=promotion.read_promise,
            roll_back=roll_back,
            is_withdrawn=lambda: self._promoted is not None and self._promoted.record.is_withdrawn(promotion),
        )

    def _roll_back(self, promotion: Promotion, reason: str) -> None:
        """Roll the plan back, once: the compiler and the monitor may both call this."""
        recorded = "it is not tried again here until you ask for it"
        try:
            assert self._promoted is not None
            if not self._promoted.record.withdraw(promotion, reason):
                return
        except Exception as error:  # noqa: BLE001 - the baseline runs already
            recorded = f"that could not be recorded ({error}), and is tried once more when the process ends"
            if not self._unrecorded:
                atexit.register(self._record_unrecorded)
            self._unrecorded.append((promotion, reason))
        warn_user(f"frx went back to the baseline for graph {promotion.subject.signature}: {reason}; {recorded}")

    def _record_unrecorded(self) -> None:
        # The user has been warned already.
        for promotion, reason in self._unrecorded:
            with contextlib.suppress(Exception):
                promotion.withdraw(reason)

    def warn_not_rewritten(self, error: Exception) -> None:
        self.warnings.warn(
            "rewriting",
            f"frx could not rewrite a graph ({summarize_error(error)}); it runs unchanged, and your program is "
            "unaffected",
        )

    def list_searches(self) -> tuple[AutopilotSearch, ...]:
        """Return what the autopilot has tried."""
        logs = () if self._promoted is None else self._promoted.trials.searches
        return tuple(found for log in logs if (found := log.make_summary()) is not None)

    def capture(self) -> Capture:
        with self._lock:
            return self._recorder.capture()

    def cancel_exit_report(self) -> None:
        """Print no report at exit, since the user has got it."""
        if self._print_at_exit:
            self._print_at_exit = False
            atexit.unregister(self._print)

    def clear(self) -> None:
        with self._lock:
            self._recorder, self.gpu = GraphRecorder("process"), None
            self.warnings.clear()
            if self._promoted is not None:
                self._promoted.trials.searches.clear()
        self.cancel_exit_report()

    def _print(self) -> None:
        try:
            # No operator is run while the interpreter shuts down: contracts and cached times must suffice.
            sys.stderr.write(f"{report(measure=False)}\n")
        except Exception as error:  # noqa: BLE001 - a program must not end with a traceback of this package
            sys.stderr.write(f"frx: no advice: {error}\n")


_session = _Session()


def frx(
    dynamo: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **inner_arguments: Any,
) -> Compiled:
    """Compile a graph as the backend "frx". Raises `OptionError` for unknown options, and no other error itself."""
    checked = parse_backend_options(options, mode)
    if checked.freeze:
        raise OptionError("a backend cannot freeze weights: it is called after tracing", "use frx_graph.compile")
    if checked.pin_strides:
        raise OptionError("a backend cannot pin strides: guards run before it is called", "use frx_graph.compile")
    check_together(checked)
    _session.choose_gpu(checked)
    if checked.pool_allocations and not pool_allocations():
        _session.warnings.warn("allocation", _NOT_POOLED)
    promotion = _session.find_promotion(dynamo, example_inputs, checked) if checked.plan is None else None
    inner = make_planned_backend(checked, _plan(checked), _session.warn_not_rewritten)
    if promotion is not None:
        inner = _session.make_monitored_compiler(promotion, checked)
    try:
        _session.record(dynamo, example_inputs, checked)
    except Exception as error:  # noqa: BLE001 - any failure of the advisor falls back to the inner compiler
        _session.warnings.warn(
            "recording",
            f"frx could not record a graph ({type(error).__name__}: {error}); "
            "it is compiled without advice, and your program is unaffected",
        )
    compiled: Compiled = inner(dynamo, example_inputs, **inner_arguments)
    return compiled


def report(*, measure: bool = True) -> AdviceReport:
    """Return the advice on what this process has compiled with `backend="frx"` so far, and what the autopilot tried.

    Each graph counts once a step, since counting calls would slow them; with several graphs the report says so. With
    `measure`, operators that the operator layout contract does not settle are run for a moment. If graphs were compiled
    with the option `for`, the advice is on those, for that GPU, and nothing is run. Raises `CaptureError` if nothing
    has been compiled yet.
    """
    capture = _session.capture()
    if not capture.graphs and not capture.failures:
        raise CaptureError(
            "nothing has been compiled with backend='frx' yet",
            "call the compiled model once; compilation happens on the first call",
        )
    _session.cancel_exit_report()
    # Not at the top: this takes half a second to import.
    from frx_graph.advisor.advisor import advise_capture

    current = select_current_versions(capture)
    if len(current.graphs) > 1:
        current = replace(current, failures=(*current.failures, _CALLS_NOT_COUNTED))
    gpu = _session.gpu
    made = advise_capture(current, target="process", measure=measure and gpu is None, gpu=gpu)
    return replace(made, advice=replace(made.advice, autopilot=_session.list_searches()))


def rewritten() -> RewrittenGraphs:
    """Return the rewrites of the graphs that this process has compiled, or found in a cache, in order, as a tuple that
    prints itself. A backward from Inductor's cache alone has the id of the process that compiled it."""
    return RewrittenGraphs(LOG.read_all())


def clear() -> None:
    """Forget what the process has compiled so far."""
    _session.clear()
    LOG.clear()


def make_frozen_backend(options: BackendOptions, constant: Callable[[Tensor], bool]) -> Compiled:
    """Return a compiler of programs with frozen weights, which applies the plan of the options, if any. `constant`
    tells which weights are watched; Inductor freezes others as well."""
    return make_frozen_planned_backend(options, _plan(options), constant, _session.warn_not_rewritten)


def _plan(options: BackendOptions) -> Plan | None:
    if options.plan is None:
        return None
    said = f"frx applies rewrites that no trial has proved (plan={options.plan!r}): meant for tests and benchmarks"
    _session.warnings.warn("unproved", said)
    return make_current_plan(options.plan)

"""Name every private API of torch that this package uses; no other module may name one. `nn.Module._parameters` and
`_buffers` count as public.

Each comment gives the first torch release with a name. "By 2.13" means that the oldest release under test has it.
Importing this module costs nothing beyond `import torch`. A name that needs Dynamo, Inductor or a build with
distributed support is imported on first use.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch._C import DispatchKey  # since 1.12
from torch._C._autograd import DeviceType  # of profiler events; since 1.10
from torch._C._autograd import _profiler_enabled as is_profiler_enabled  # since 1.10
from torch._C._profiler import _EventType as EventType  # Kineto's event tree; since 1.12
from torch._C._profiler import _RecordFunctionFast as RecordFunctionFast  # a region with little overhead; since 2.0
from torch._C._profiler import _TensorMetadata as TensorMetadata  # since 1.12
from torch._C._verbose import mkldnn_set_verbose  # behind `torch.backends.mkldnn.verbose`; since 1.13
from torch._dispatch.python import enable_python_dispatcher  # also with symbolic shapes; since 2.0
from torch._guards import CompileContext, TracingContext, tracing  # the running compilation; since 2.0, 2.1 the first
from torch._ops import HigherOrderOperator, OperatorBase, OpOverload, OpOverloadPacket  # since 2.0, overloads 1.11
from torch._prims_common import make_channels_last_strides_for, make_contiguous_strides_for  # since 1.13
from torch._subclasses import fake_tensor  # tensors without data; since 1.13
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    disable_fake_tensor_cache,  # by 2.13
)
from torch._subclasses.functional_tensor import FunctionalTensor  # what AOTAutograd traces; since 2.2
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as preserve_version_counter  # since 2.0
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule  # since 2.3
from torch.fx.graph import _BoxedCodeGen as BoxedCodeGen  # code that takes its arguments as one list; by 2.13
from torch.fx.node import _get_qualified_name as get_qualified_name  # since 1.8
from torch.nn.modules.batchnorm import _NormBase as NormBase  # of batch and instance normalization; since 1.4
from torch.utils import _pytree as pytree  # since 1.8; the public `torch.utils.pytree` is another implementation
from torch.utils._python_dispatch import TorchDispatchMode  # since 1.13
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes  # since 2.0

# For type checkers; `_LATE` and `_LATE_MODULES` have the same names.
if TYPE_CHECKING:
    from torch._C._distributed_c10d import PrefixStore, Store
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import convert_frame, eval_frame, list_backends, lookup_backend
    from torch._dynamo import utils as dynamo_utils
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.eval_frame import remove_from_cache
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, RestartAnalysis, TorchDynamoException
    from torch._dynamo.utils import counters
    from torch._dynamo.variables import torch as dynamo_torch
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
    from torch._functorch.partitioners import default_partition
    from torch._inductor import config as inductor_config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.custom_graph_pass import CustomGraphPass
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.loop_body import MemoryUsageType
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.scheduler import (
        ExternKernelSchedulerNode,
        ForeachKernelSchedulerNode,
        OutputNode,
        SchedulerNode,
    )
    from torch._inductor.virtualized import V

_LATE = {
    # Stores of process groups. Since 1.8.
    "torch._C._distributed_c10d": "PrefixStore Store",
    # Dynamo: backends, cached code, errors, counters. Since 2.0; by 2.13 `FailOnRecompileLimitHit`, `compile_lock` and
    # `remove_from_cache`.
    "torch._dynamo": "list_backends lookup_backend",
    "torch._dynamo.backends.common": "aot_autograd",
    "torch._dynamo.convert_frame": "compile_lock",
    "torch._dynamo.eval_frame": "remove_from_cache",
    "torch._dynamo.exc": "BackendCompilerFailed FailOnRecompileLimitHit RestartAnalysis TorchDynamoException",
    "torch._dynamo.utils": "counters",
    # AOTAutograd and its partitioner. Since 2.0; the hooks by 2.13.
    "torch._functorch._aot_autograd.logging_utils": "setup_stacktrace_preservation_hooks",
    "torch._functorch.partitioners": "default_partition",
    # Inductor: modes, entry points, scheduler. Since 2.0; by 2.13 `CustomGraphPass`, `MemoryUsageType` and
    # `CompiledFxGraph`.
    "torch._inductor": "list_mode_options",
    "torch._inductor.compile_fx": "compile_fx compile_fx_inner",
    "torch._inductor.custom_graph_pass": "CustomGraphPass",
    "torch._inductor.decomposition": "select_decomp_table",
    "torch._inductor.loop_body": "MemoryUsageType",
    "torch._inductor.output_code": "CompiledFxGraph",
    "torch._inductor.scheduler": "ExternKernelSchedulerNode ForeachKernelSchedulerNode OutputNode SchedulerNode",
    "torch._inductor.virtualized": "V",
}
"""Names that `import torch` does not load, separated by spaces, by their modules."""
_LATE_NAMES = {name: path for path, names in _LATE.items() for name in names.split()}
_LATE_MODULES = {
    # Since 2.0.
    "convert_frame": "torch._dynamo.convert_frame",
    "dynamo_config": "torch._dynamo.config",
    "dynamo_torch": "torch._dynamo.variables.torch",
    "dynamo_utils": "torch._dynamo.utils",
    "eval_frame": "torch._dynamo.eval_frame",
    "functorch_config": "torch._functorch.config",
    "inductor_config": "torch._inductor.config",
}
"""Modules that `import torch` does not load."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LATE_MODULES:
            return importlib.import_module(_LATE_MODULES[name])
        if name in _LATE_NAMES:
            return getattr(importlib.import_module(_LATE_NAMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


InductorBackend = torch._TorchCompileInductorWrapper  # as `torch.compile` calls it; since 2.0
torch_check = torch._check  # an assertion that tracing understands; since 2.1

# Context managers: no autocast, no Python implementations of operators. Since 2.0.
disable_autocast = torch._C._DisableAutocast
disable_python_dispatcher = torch._C._DisablePythonDispatcher

# The backward node that runs, since 2.0; the sequence number that ties it to its forward operator, by 2.13.
get_autograd_node = torch._C._current_autograd_node
get_sequence_number = torch._C._autograd._get_sequence_nr

# Transforms of `torch.func`. Since 2.1.
get_functorch_depth = torch._C._functorch.get_dynamic_layer_stack_depth
is_functorch_tensor = torch._C._functorch.is_functorch_wrapped_tensor
pop_functorch_layers = torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth

# The kernel that a convolution takes, as torch's own fake tensors ask for it. Since 1.13.
ConvBackend: Any = torch._C._ConvBackend  # type: ignore[attr-defined]
select_conv_backend = torch._C._select_conv_backend

# The innermost hooks on what autograd saves, and hiding from them. By 2.13.
get_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
set_saved_tensor_hooks_tracing = torch._C._autograd._saved_tensors_hooks_set_tracing

# The writes to a tensor that autograd has counted, by 2.13. A getter written in C: it is called for every weight.
get_version = operator.attrgetter("_version")

# The question whether `make_fx` traces, which Dynamo answers from a table. By 2.13; None without it.
is_make_fx_tracing: Any = getattr(nn.modules.activation, "_is_make_fx_tracing", None)


def has_onednn() -> bool:
    """Return True if torch was built with oneDNN. `_has_mkldnn` exists since 1.0."""
    return bool(torch._C._has_mkldnn)


def is_onednn_enabled() -> bool:
    """Return False if the program has switched oneDNN off. `_get_mkldnn_enabled` exists since 1.10."""
    return bool(torch._C._get_mkldnn_enabled())


def is_backward_running() -> bool:
    """Return True inside a backward pass. `_current_graph_task_id` exists since 2.0."""
    return bool(torch._C._current_graph_task_id() != -1)


def count_storage_users(tensor: Tensor) -> int:
    """Return the number of references to the storage of `tensor`. `_storage_Use_Count` exists since 2.1."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def get_compile_stance() -> str:
    """Return the name that `torch.compiler.set_stance` has set. The stance exists since 2.6."""
    return str(torch._dynamo.eval_frame._stance.stance)


# All below exist by 2.13.


def get_storage_id(storage: torch.UntypedStorage) -> int:
    """Return an identifier of a storage, unique while it lives."""
    return int(storage._cdata)


def get_function_number(function: Any) -> int:
    """Return the number of a function in autograd's graph: later operators have greater ones."""
    return int(function._sequence_nr())


def list_results_of(function: Any) -> Sequence[Any]:
    """Return shape and dtype of each result whose gradient a function in autograd's graph takes. By 2.13."""
    return tuple(function._input_metadata)


def convert_module(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Convert the tensors of a module in its own way, as `Module.to` does."""
    module._apply(function)


@contextlib.contextmanager
def allow_gpu_autocast() -> Iterator[None]:
    """Let autocast of GPUs narrow operators also without one: torch switches it off then."""
    cuda = torch.cuda
    former = cuda.amp.common.amp_definitely_not_available, cuda.is_bf16_supported
    cuda.amp.common.amp_definitely_not_available = lambda: False
    cuda.is_bf16_supported = lambda *_: True
    try:
        yield
    finally:
        cuda.amp.common.amp_definitely_not_available, cuda.is_bf16_supported = former


@contextlib.contextmanager
def replace_module_conversion(convert: Callable[..., nn.Module]) -> Iterator[None]:
    """Let `convert(module, function, recurse)` do what `Module.to`, `half` and the like do with their tensors."""
    former = nn.Module._apply
    nn.Module._apply = convert  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = former  # type: ignore[method-assign]


@contextlib.contextmanager
def trace_without_constants() -> Iterator[None]:
    """Compute nothing while tracing: of tensors of one element torch knows the values, and computes with them on their
    device, which may not be here (`proxy_call`; since 1.13)."""
    proxy_tensor: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
    former, proxy_tensor.CONSTANT_NUMEL_LIMIT = proxy_tensor.CONSTANT_NUMEL_LIMIT, -1
    try:
        yield
    finally:
        proxy_tensor.CONSTANT_NUMEL_LIMIT = former


def is_view(tensor: Tensor) -> bool:
    """Return True if autograd treats the tensor as a view."""
    return tensor._is_view()


def get_base(tensor: Tensor) -> Tensor | None:
    """Return the tensor that this one is a view of."""
    return tensor._base


def has_hooks(tensor: Tensor) -> bool:
    """Return True if the program has hooks on the tensor's gradient."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def get_forward_hooks(module: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """Return the hooks that a call of the module runs, by number: its own, and those of all modules."""
    every = nn.modules.module
    return (
        module._forward_pre_hooks,
        module._forward_hooks,
        every._global_forward_pre_hooks,
        every._global_forward_hooks,
    )


def is_compiled_module(module: object) -> bool:
    """Return True after `module.compile()`, and for what `torch.compile(module)` returns."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def is_compiled_function(function: object) -> bool:
    """Return True for what `torch.compile(function)` returns, also as a method."""
    return hasattr(getattr(function, "__func__", function), "_torchdynamo_orig_callable")


def get_schema(overload: OpOverload) -> torch.FunctionSchema:
    """Return the schema of an operator."""
    return overload._schema


def get_overload_name(overload: OpOverload) -> str:
    """Return the name of an overload, such as `Tensor`."""
    return str(overload._overloadname)


def get_packet_name(packet: OpOverloadPacket) -> str:
    """Return the name of an operator, such as `aten::add`."""
    return str(packet._qualified_op_name)


def clear_dispatch_cache(overload: OpOverload) -> None:
    """Let an operator look its kernels up again."""
    overload._dispatch_cache.clear()


def get_node_sequence_number(node: Any) -> int:
    """Return the number that an autograd node shares with its forward operator."""
    return int(node._sequence_nr())


def get_autograd_function(result: Tensor) -> Any:
    """Return the `autograd.Function` written in Python that made a result, or None."""
    return getattr(type(result.grad_fn), "_forward_cls", None)


def queue_backward_callback(callback: Callable[[], None]) -> None:
    """Call `callback` at the end of the running backward."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def get_default_store() -> Store:
    """Return the store of the default process group."""
    return torch.distributed.distributed_c10d._get_default_store()


def get_dynamo_source(node: fx.Node) -> Any:
    """Return where Dynamo found an input, or None."""
    return getattr(node, "_dynamo_source", None)


def copy_dynamo_source(node: fx.Node, copied: fx.Node) -> None:
    """Give the copy of a node its source, by which AOTAutograd finds weights.

    `DDPOptimizer` sets None for inputs, and AOTAutograd requires the attribute.
    """
    if hasattr(node, "_dynamo_source"):
        copied._dynamo_source = node._dynamo_source


def get_parameter_sources(module: fx.GraphModule) -> dict[str, Any] | None:
    """Return the sources by which AOTAutograd finds weights, or None."""
    sources: dict[str, Any] | None = getattr(module, "_param_name_to_source", None)
    return sources


def set_parameter_sources(module: fx.GraphModule, sources: dict[str, Any]) -> None:
    """Set the sources by which AOTAutograd finds weights."""
    module._param_name_to_source = sources  # type: ignore[assignment]


def mark_boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Tell AOTAutograd that `run` takes its arguments in one list."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def get_cache_reader() -> Callable[[Any], list[Any]] | None:
    """Return the function that lists the compiled versions of a code object, or None."""
    return getattr(torch._dynamo.eval_frame, "_debug_get_cache_entry_list", None)


def get_metrics_log() -> Any:
    """Return Dynamo's bounded list of compilations, or None."""
    return getattr(torch._dynamo.utils, "_compilation_metrics", None)


def get_frame_metrics(context: object) -> Mapping[str, Any] | None:
    """Return Dynamo's metrics of the frame that it compiles, or None."""
    return getattr(context, "_metrics", None)


def get_config_defaults(config: ModuleType) -> dict[str, Any]:
    """Return the defaults of a configuration of torch by name."""
    return {name: setting.default for name, setting in config._config.items()}


def is_config_default(config: ModuleType, name: str) -> bool:
    """Return True if a setting was never set."""
    return bool(config._is_default(name))


def has_post_fusion_pass() -> bool:
    """Return True if Inductor runs a pass behind its fusion."""
    return hasattr(torch._inductor.config, "_post_fusion_custom_pass")


def get_post_fusion_pass() -> Callable[[list[Any]], list[Any]] | None:
    """Return the pass behind Inductor's fusion, or None."""
    return torch._inductor.config._post_fusion_custom_pass


def use_post_fusion_pass(run: Callable[[list[Any]], list[Any]]) -> AbstractContextManager[None]:
    """Run a pass behind Inductor's fusion in the block."""
    patched: AbstractContextManager[None] = torch._inductor.config.patch(_post_fusion_custom_pass=run)
    return patched


def get_loop_body(node: Any) -> Any:
    """Return the loop body of a node of Inductor's schedule."""
    return node._body


def load_force_strides() -> OpOverload:
    """Return Inductor's operator that returns a tensor with other strides, and copies it only if it must."""
    importlib.import_module("torch._inductor.inductor_prims")
    overload: OpOverload = torch.ops.prims.inductor_force_stride_order.default
    return overload


def load_operator_database() -> list[Any]:
    """Return torch's operators with samples of their arguments. Raises `ImportError` without the package
    `expecttest`. Importing them forbids the process to set flags of `torch.backends`."""
    database = importlib.import_module("torch.testing._internal.common_methods_invocations")
    return list(database.op_db)


def list_generated_modules() -> Iterable[ModuleType]:
    """Return the Python modules that Inductor has generated."""
    # Where nothing has imported Inductor, nothing has been generated.
    cache = sys.modules.get("torch._inductor.codecache")
    return () if cache is None else tuple(cache.PyCodeCache.modules)


_IMPORTED_BY_COMPILING = (
    "torch._dynamo.backends.inductor",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._export.passes.collect_tracepoints_pass",
    "torch._inductor.choices",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._inductor.kernel_template_choice",
    "torch._subclasses.schema_check_mode",
    "torch.export._trace",
    "torch.export._unlift",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)
"""Modules that torch 2.15 imports in the first compilation of a process. Not all versions have all."""


_COMPUTED_BY_COMPILING = (
    ("torch._dynamo.backends.registry", "_lazy_import"),
    ("torch._inductor.codecache", "torch_key"),
    ("torch._inductor.codecache", "triton_key"),
)
"""Functions that the first compilation of a process calls, and torch 2.15 caches for the rest of it: the installed
backends, and hashes of the sources of torch and Triton. Together they take about a second."""


def sort_nodes(graph: fx.Graph) -> None:
    """Move nodes behind what they read, and leave the rest in its order."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)


def warm_up_compiler() -> None:
    """Import and compute what the first compilation would, without compiling a program."""
    for name in _IMPORTED_BY_COMPILING:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module, function in _COMPUTED_BY_COMPILING:
        # A version that lacks one computes it when it compiles.
        with contextlib.suppress(ImportError, AttributeError):
            getattr(importlib.import_module(module), function)()
    # Without a C++ compiler, the compilation that needs one says so.
    with contextlib.suppress(Exception):
        _test_instruction_sets()


def _test_instruction_sets() -> None:
    """Compile and load Inductor's test of each vector instruction set, side by side. With an empty cache, the first
    compilation does so one after the other, which takes 8 seconds (torch 2.15, two cores)."""
    from torch._inductor import cpu_vec_isa

    has = cpu_vec_isa.x86_isa_checker()
    sets = [one for one in cpu_vec_isa.supported_vec_isa_list if set(str(one).split()) <= set(has)]
    with ThreadPoolExecutor(max(1, len(sets))) as threads:
        list(threads.map(bool, sets))

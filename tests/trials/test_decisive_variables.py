"""Which environment variables make another environment: of all that the configuration of torch's compilers reads, each
is known to decide, or not to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from frx_graph.trials.decisive_variables import _NOT_DECISIVE, select_decisive_variables

CONFIGURATIONS = (
    "_dynamo/config.py",
    "_functorch/config.py",
    "_inductor/config.py",
    "_inductor/config_comms.py",
    "compiler/config.py",
    "fx/experimental/_config.py",
)
READ = (
    r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["'](\w+)["']""",
    r"""["'](\w+)["'] in os\.environ""",
    r"""env_name_(?:force|default)=["'](\w+)["']""",
)
SEVERAL = r"env_name_(?:force|default)=\[([^\]]*)\]"

IRRELEVANT = {
    "what is said, recorded or shown": """
        AOTINDUCTOR_RAISE_ERROR_ON_IGNORED_OPTIMIZATION AOTINDUCTOR_REPRO_LEVEL AOT_PARTITIONER_DEBUG DUMP_AOTI_MINIFIER
        INDUCTOR_CK_BACKEND_GENERATE_TEST_RUNNER_CODE INDUCTOR_CUDA_BACKEND_GENERATE_TEST_RUNNER_CODE
        INDUCTOR_DOT_GRAPH_SHAPE_SVG INDUCTOR_LOG_URL_FOR_GRAPH_XFORM INDUCTOR_ORIG_FX_GRAPH INDUCTOR_ORIG_FX_SVG
        INDUCTOR_POST_FUSION_GRAPH INDUCTOR_POST_FUSION_SVG INDUCTOR_PROVENANCE LOG_AUTOTUNE_RESULTS LOG_TLPARSE
        MAST_HPC_JOB_NAME PARTITIONER_MEMORY_BUDGET_PARETO PARTITIONER_MEMORY_BUDGET_PARETO_DIR PT2_COMPILE_ID_PREFIX
        ROLE_RANK TORCHEXPORT_EXTENDED_DEBUG_CURRENT_LOC TORCH_COMPILE_CPROFILE TORCH_COMPILE_DEBUG
        TORCH_COMPILE_DEBUG_EXTEND TORCH_COMPILE_DEBUG_MAX_EVENTS TORCH_COMPILE_DEBUG_SAVE_REAL
        TORCH_COMPILE_DYNAMO_PROFILER TORCH_COMPILE_GRAPH_FORMAT TORCH_COMPILE_REPLAY_RECORD
        TORCH_ENRICH_RPOFILER_STACK_TRACE""",
    "from which cache, by which process, and with which errors the same is compiled": """
        CI FAKE_ALLOW_META TORCH_CACHING_PRECOMPILE TORCH_COMPILE_CACHE_KEY_TAG TORCH_COMPILE_FORCE_DISABLE_CACHES
        TORCH_COMPILE_JOB_ID TORCH_COMPILE_STICKY_PGO_KEY TORCH_COMPILE_STICKY_PGO_READ TORCH_COMPILE_STICKY_PGO_WRITE
        TORCH_COMPILE_USE_LAZY_GRAPH_MODULE TORCH_COMPILE_WORKER_MODE TORCH_CUDAGRAPH_GC
        TORCH_DYNAMO_GC_GEN2_THRESHOLD_DURING_COMPILE TORCH_DYNAMO_RUN_GC_AFTER_COMPILE TORCH_FAKE_TENSOR_DISPATCH_CACHE
        TORCH_FAKE_TENSOR_DISPATCH_CACHE_CROSSCHECK TORCH_STRICT_PRECOMPILE""",
    "which graphs are made of a program, each with a signature, or that none are": """
        TORCH_COMPILER_COLLECTIVES TORCH_COMPILE_DISABLE TORCH_COMPILE_DYNAMIC_SOURCES TORCH_COMPILE_DYNAMIC_VALUES
        TORCH_COMPILE_ON_ONE_RANK TORCH_COMPILE_STATIC_SOURCES TORCH_COMPILE_UNBACKED_SOURCES
        TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO
        TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES UNSAFE_SKIP_FSDP_MODULE_GUARDS""",
}


def read_by_torch() -> set[str]:
    found: set[str] = set()
    for name in CONFIGURATIONS:
        file = Path(torch.__file__).parent / name
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for pattern in READ:
            found.update(re.findall(pattern, text))
        for names in re.findall(SEVERAL, text):
            found.update(re.findall(r'"(\w+)"', names))
    return found


def is_decisive(name: str) -> bool:
    return bool(select_decisive_variables({name: "1"}))


def test_variables_read_by_torch_are_classified() -> None:
    found = read_by_torch()
    assert len(found) > 200
    irrelevant = {name for names in IRRELEVANT.values() for name in names.split()}
    assert {name for name in found if not is_decisive(name)} - _NOT_DECISIVE - irrelevant == set()
    assert not any(is_decisive(name) for name in irrelevant)


@pytest.mark.parametrize(
    "name",
    ["CXX", "ENABLE_PERSISTENT_TMA_MATMUL", "CUTLASS_EPILOGUE_FUSION", "TRITON_F32_DEFAULT", "TORCHDYNAMO_REPRO_AFTER"],
)
def test_variables_that_change_generated_code_are_decisive(name: str) -> None:
    assert is_decisive(name)


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH"])
def test_variables_set_by_inductor_are_not_decisive(name: str) -> None:
    assert not is_decisive(name)

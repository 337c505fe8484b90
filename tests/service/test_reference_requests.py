"""The requests of the published service, with texts where its documentation has dots."""

from __future__ import annotations

import pytest
from ncu_exports import SOL, Launch, long_export, metric

SOURCE = "__global__ void my_kernel(float* x, int stride) { x[threadIdx.x * stride] *= 2.0f; }\n"
PTX = (
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry scale(.param .u64 x)\n{\n .reg .f64 %fd<3>;\n"
    " mul.f64 %fd2, %fd1, %fd1;\n ret;\n}\n"
)
EXPORT = long_export(
    metric(Launch(), SOL, "Duration", "us", "90.00"),
    metric(Launch(), SOL, "Compute (SM) Throughput", "%", "20.00"),
    metric(Launch(), SOL, "Memory Throughput", "%", "90.00"),
    metric(Launch(), SOL, "DRAM Throughput", "%", "90.00"),
)
SIDE = {"cuda_source": SOURCE, "ptx_text": PTX, "ncu_csv": EXPORT}
REQUESTS = {
    "/cuda/static-inspect": (
        {"gpu_model": "NVIDIA H100", "files": [{"filename": "kernel.cu", "content": SOURCE}]},
        {"kernels", "launch_configs", "indexing_patterns", "memory_tags", "atomics", "shared_memory_warnings"}
        | {"launch_advice", "occupancy"},
    ),
    "/ncu/analyze": (
        {"csv_text": EXPORT, "gpu_model": "NVIDIA H100"},
        {"primary_bottleneck", "bottlenecks", "recommendations"},
    ),
    "/ptx/analyze": (
        {"ptx_text": PTX},
        {"findings", "primary_bottleneck", "secondary_bottlenecks", "bottlenecks", "recommendations", "bundles"},
    ),
    "/compare": (
        {"a": {"label": "baseline", **SIDE}, "b": {"label": "optimized", **SIDE}},
        {"static_diff", "ptx_diff", "ncu_diff", "scorecard", "verdict", "tradeoffs"},
    ),
    # The published request has the results of the other endpoints. Here it has what they were made from: a result might
    # belong to another program, or to another version.
    "/reconcile": (
        {"static": {"files": [{"content": SOURCE}]}, "ptx": {"ptx_text": PTX}, "ncu": {"csv_text": EXPORT}},
        {"diagnoses", "unreconciled", "layers_available"},
    ),
}


@pytest.mark.parametrize(("path", "body", "fields"), [(path, *rest) for path, rest in REQUESTS.items()], ids=REQUESTS)
def test_the_published_request(client, path, body, fields) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 200
    assert fields <= answer.json().keys()

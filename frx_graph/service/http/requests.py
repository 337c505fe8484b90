"""Bodies of the JSON endpoints: files as text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frx_graph.evidence.file_kind import FileKind
from frx_graph.service.job_folder import JobFolder

MOST_FILES = 64
_SOURCE = """__global__ void k(float *out, const float *in, int stride) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i * stride];
}
"""
_PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
  ret;
}
"""
_NCU = """"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","k","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","91.5"
"0","k","gpu__time_duration.sum","ns","5120"
"""

Text = Annotated[str, Field(min_length=1)]
GpuName = Annotated[
    str | None, Field(max_length=100, description="product or architecture, H100 or sm_90, instead of the file's")
]
Label = Annotated[str, Field(min_length=1, max_length=200)]


def _make_config(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [example]})


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, value: Any) -> Any:
        # Report one error, even for two million unknown fields.
        if isinstance(value, dict) and (unknown := value.keys() - cls.model_fields.keys()):
            raise ValueError(f"there is no field {sorted(unknown)[0][:100]!r}")
        return value


class SourceFile(_Request):
    """CUDA source."""

    filename: Annotated[str, Field(min_length=1, max_length=255)] = "kernel.cu"
    content: Text

    def fill(self, folder: JobFolder) -> None:
        """Write the file."""
        folder.add_text(self.filename, self.content, FileKind.CUDA)


class SourceLayer(_Request):
    """CUDA source of one program."""

    files: Annotated[tuple[SourceFile, ...], Field(min_length=1, max_length=1)]

    def fill(self, folder: JobFolder) -> None:
        """Write the files."""
        for file in self.files:
            file.fill(folder)


class StaticInspectRequest(SourceLayer):
    """One or more files of CUDA source."""

    model_config = _make_config({"gpu_model": "NVIDIA H100", "files": [{"filename": "kernel.cu", "content": _SOURCE}]})

    files: Annotated[tuple[SourceFile, ...], Field(min_length=1, max_length=MOST_FILES)]
    gpu_model: GpuName = None


class NcuLayer(_Request):
    """Measurements of Nsight Compute."""

    csv_text: Text

    def fill(self, folder: JobFolder) -> None:
        """Write the export."""
        folder.add_text("ncu.csv", self.csv_text, FileKind.NCU_CSV)


class NcuRequest(NcuLayer):
    """An export of Nsight Compute."""

    model_config = _make_config({"csv_text": _NCU})

    gpu_model: GpuName = None


class PtxLayer(_Request):
    """PTX of the program."""

    ptx_text: Text

    def fill(self, folder: JobFolder) -> None:
        """Write the PTX."""
        folder.add_text("kernel.ptx", self.ptx_text, FileKind.PTX)


class PtxRequest(PtxLayer):
    """PTX, as `nvcc --ptx` writes it."""

    model_config = _make_config({"ptx_text": _PTX})

    gpu_model: GpuName = None


class CompareSide(_Request):
    """The layers of one implementation, at least one."""

    label: Label | None = None
    cuda_source: Text | None = None
    ptx_text: Text | None = None
    ncu_csv: Text | None = None

    @model_validator(mode="after")
    def _require_input(self) -> CompareSide:
        if self.cuda_source is None and self.ptx_text is None and self.ncu_csv is None:
            raise ValueError("one of cuda_source, ptx_text and ncu_csv is needed")
        return self

    def fill(self, folder: JobFolder, side: Literal["a", "b"]) -> None:
        """Write the layers of a side."""
        layers = (
            (self.cuda_source, "cu", FileKind.CUDA),
            (self.ptx_text, "ptx", FileKind.PTX),
            (self.ncu_csv, "csv", FileKind.NCU_CSV),
        )
        for text, suffix, kind in layers:
            if text is not None:
                folder.add_text(f"{side}.{suffix}", text, kind, side)


class CompareRequest(_Request):
    """Two implementations; `b` should be the better one."""

    model_config = _make_config(
        {
            "a": {"label": "baseline", "cuda_source": _SOURCE},
            "b": {"label": "optimized", "cuda_source": _SOURCE.replace("[i * stride]", "[i]")},
        }
    )

    a: CompareSide
    b: CompareSide
    gpu_model: GpuName = None

    def fill(self, folder: JobFolder) -> None:
        """Write the layers of both sides."""
        self.a.fill(folder, "a")
        self.b.fill(folder, "b")


class ProfilerLayer(_Request):
    """A torch.profiler trace of the program, as JSON."""

    trace_text: Text

    def fill(self, folder: JobFolder) -> None:
        """Write the trace."""
        folder.add_text("trace.json", self.trace_text, FileKind.TRACE)


class ReconcileRequest(_Request):
    """The layers of one program, each in the form that its own endpoint takes. They are analysed again, since earlier
    results might belong to another program or version."""

    model_config = _make_config({"static": {"files": [{"content": _SOURCE}]}, "ncu": {"csv_text": _NCU}})

    static: SourceLayer | None = None
    ptx: PtxLayer | None = None
    ncu: NcuLayer | None = None
    profiler: ProfilerLayer | None = None
    gpu_model: GpuName = None

    @model_validator(mode="after")
    def _require_input(self) -> ReconcileRequest:
        if self.static is None and self.ptx is None and self.ncu is None and self.profiler is None:
            raise ValueError("one of static, ptx, ncu and profiler is needed")
        return self

    def fill(self, folder: JobFolder) -> None:
        """Write the layers."""
        for layer in (self.static, self.ptx, self.ncu, self.profiler):
            if layer is not None:
                layer.fill(folder)

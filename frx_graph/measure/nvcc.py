"""Compile CUDA source with nvcc, and read what its assembler reports about the kernels."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.ptxas import Assembled, parse_report
from frx_graph.support.supervisor.run import ProgramRun, RunEnding, run_program

LIMIT_SECONDS = 600.0
"""Time limit of one compilation: template libraries such as CUTLASS take minutes."""
NOT_FOR_SHELLS = re.compile(r"""[$`"\\\x00-\x1f]""")
"""Characters that a file name must not have: nvcc passes names in double quotes to a shell, which would run them."""
_NAMES_ARCHITECTURE = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")
"""Beginnings of flags that name an architecture; nvcc then gets no other."""
_ARCHITECTURE = re.compile(r"Compiling entry function '[^']*' for '(sm_\w+)'")
_NO_MAIN = re.compile(r"undefined reference to [`'‘]main['’]|undefined symbol: main\b")
"""Messages of GNU's and LLVM's linkers."""


@dataclass(frozen=True, slots=True)
class CompiledSource:
    """The result of compiling one source."""

    program: Path | None
    """None without a program; `errors` has the reason."""
    kernels: Mapping[str, Assembled]
    """Kernels by mangled name; also of a source that was assembled but not linked."""
    architectures: tuple[str, ...]
    """Architectures that its kernels were assembled for, in order; `kernels` holds those of the last."""
    errors: str
    """Output of nvcc; empty if there is a program."""

    @property
    def lacks_main(self) -> bool:
        """True if only a `main` is missing."""
        return self.program is None and _NO_MAIN.search(self.errors) is not None


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The compiler, and the folder for temporary files of it and its child processes."""

    program: str
    temporary: Path

    def compile_program(
        self,
        source: Path,
        output: Path,
        *,
        arch: str | None,
        flags: Sequence[str],
        cudart: Literal["shared", "static"] = "shared",
    ) -> CompiledSource:
        """Compile a program to `output` for `arch` ("sm_90"; "native": this machine's GPUs; None: nvcc's default).

        With the shared CUDA runtime a library can be preloaded between it and the program; the static runtime needs no
        library at run time. `flags` come last, so they take precedence. Raises `EvidenceError` if the source is not a
        file, or if a shell would interpret its name.
        """
        ran, text = self._compile(["-cudart", cudart, "-Xptxas=-v"], source, output, arch, flags)
        found = parse_report(text), tuple(dict.fromkeys(_ARCHITECTURE.findall(text)))
        if ran.ending is not RunEnding.EXITED:
            return CompiledSource(None, *found, f"nvcc: {ran.problem}\n{text}")
        if ran.exit_code:
            return CompiledSource(None, *found, _drop_ptxas_report(text) or f"nvcc: {ran.problem}")
        if not os.access(output, os.X_OK):
            error = "nvcc has made no program: leave -c, -ptx and the like out of the flags"
            return CompiledSource(None, *found, error)
        return CompiledSource(output, *found, "")

    def compile_ptx(self, source: Path, output: Path, *, arch: str | None, flags: Sequence[str]) -> str | None:
        """Compile PTX to `output` for `arch`, or nvcc's default; return nvcc's messages if that fails. `flags` and
        errors are the same as above."""
        ran, text = self._compile(["-ptx"], source, output, arch, flags)
        if ran.problem is not None:
            return text.strip() if ran.ending is RunEnding.EXITED and text.strip() else f"nvcc: {ran.problem}"
        return None if output.is_file() else "nvcc has made no PTX: leave -c, -cubin and the like out of the flags"

    def compile_library(self, source: Path, output: Path) -> str | None:
        """Compile C++ with the headers of CUDA into a shared library without linking CUDA; return the error, if any."""
        ran = self._run(["-shared", "-O2", "-Xcompiler=-fPIC", "-cudart", "none", "-o", str(output), str(source)])
        if ran.problem is None:
            return None
        return ran.errors.decode(errors="replace").strip() or ran.problem

    def find_runtime_folders(self) -> tuple[str, ...]:
        """Return the folders of the toolkit's shared libraries, which the system's loader may not find by itself."""
        ran = self._run(["--dryrun", "-x", "cu", os.devnull])
        for line in ran.errors.decode(errors="replace").splitlines():
            if line.startswith("#$ LIBRARIES="):
                given = [word.removeprefix("-L") for word in shlex.split(line.partition("=")[2])]
                return tuple(str(Path(folder).resolve()) for folder in given if Path(folder).name != "stubs")
        return ()

    def _compile(
        self, options: Sequence[str], source: Path, output: Path, arch: str | None, flags: Sequence[str]
    ) -> tuple[ProgramRun, str]:
        """Return the run and all that it printed."""
        if not source.is_file():
            raise EvidenceError(f"{source}: no such file", "name CUDA source files")
        if NOT_FOR_SHELLS.search(str(source.absolute())):
            raise EvidenceError(f"{source}: nvcc would hand this name to a shell", "rename the file or its folder")
        # Only for other names, since nvcc would then take object files in flags for CUDA, too.
        language = () if source.suffix == ".cu" else ("-x", "cu")
        named = any(flag.startswith(_NAMES_ARCHITECTURE) for flag in flags)
        architecture = () if arch is None or named else (f"-arch={arch}",)
        # An absolute path cannot be taken for an option.
        paths = ("-o", str(output.absolute()), str(source.absolute()))
        ran = self._run([*language, *options, *architecture, *flags, *paths])
        return ran, ran.errors.decode(errors="replace") + ran.output.decode(errors="replace")

    def _run(self, arguments: Sequence[str]) -> ProgramRun:
        environment = {**os.environ, "TMPDIR": str(self.temporary)}
        try:
            return run_program([self.program, *arguments], limit_seconds=LIMIT_SECONDS, environment=environment)
        except OSError as error:
            raise EvidenceError(f"{self.program} cannot be started: {error.strerror or error}") from None


def find_nvcc() -> str | None:
    """Return the compiler on the PATH, or that of the CUDA toolkit at CUDA_HOME; None without one."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc") or (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None)


def _drop_ptxas_report(text: str) -> str:
    """Drop the lines of `ptxas -v`, which do not explain errors."""
    return "\n".join(
        line
        for line in text.splitlines()
        if not line.startswith("ptxas info") and "bytes stack frame" not in line and line.strip()
    )

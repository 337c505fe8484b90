"""CUDA source made into a program by nvcc, and what its assembler says of the kernels on the way."""

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
from frx_graph.support.supervisor.run import Ending, ProgramRun, run_program

LIMIT_SECONDS = 600.0
"""For one compilation: template libraries such as CUTLASS take minutes."""
NOT_FOR_SHELLS = re.compile(r"""[$`"\\\x00-\x1f]""")
"""nvcc hands the names of files, in double quotes, to a shell: in a name of these it runs what stands there."""
_NAMES_ARCHITECTURE = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")
"""Beginnings of flags that do: then nvcc is asked for no other."""
_ARCHITECTURE = re.compile(r"Compiling entry function '[^']*' for '(sm_\w+)'")
_NO_MAIN = re.compile(r"undefined reference to [`'‘]main['’]|undefined symbol: main\b")
"""As GNU's linkers say it, and LLVM's."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one source."""

    program: Path | None
    """None where there is none, for the reason in `errors`."""
    kernels: Mapping[str, Assembled]
    """By mangled name; also of a source that could be assembled but not linked."""
    architectures: tuple[str, ...]
    """That its kernels were assembled for, in this order; where there are several, `kernels` has what the last made."""
    errors: str
    """What nvcc had to say; empty where there is a program."""

    @property
    def lacks_main(self) -> bool:
        """Whether all that is missing is a `main`."""
        return self.program is None and _NO_MAIN.search(self.errors) is not None


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The compiler, and the folder where it and all that it starts put their temporary files."""

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
    ) -> Compiled:
        """A program at `output` for `arch` ("sm_90"; "native": the GPUs that are here; None: what nvcc takes unasked).

        With the shared CUDA runtime one can get between it and the program without changing either; the static one is
        found wherever the program is run. `flags` come last, so they have the last word. Raises `EvidenceError` for a
        source that is no file, or has a name that nvcc would have a shell interpret.
        """
        # An absolute path cannot be taken for an option.
        said = [*_language(source), "-cudart", cudart, *_architecture(arch, flags), "-Xptxas=-v", *flags]
        ran = self._run([*said, "-o", str(output.absolute()), str(source.absolute())])
        text = ran.errors.decode(errors="replace") + ran.output.decode(errors="replace")
        found = parse_report(text), tuple(dict.fromkeys(_ARCHITECTURE.findall(text)))
        if ran.ending is not Ending.EXITED:
            return Compiled(None, *found, f"nvcc: {ran.problem}\n{text}")
        if ran.exit_code:
            return Compiled(None, *found, _without_report(text) or f"nvcc: {ran.problem}")
        if not os.access(output, os.X_OK):
            return Compiled(None, *found, "nvcc has made no program: leave -c, -ptx and the like out of the flags")
        return Compiled(output, *found, "")

    def compile_ptx(self, source: Path, output: Path, *, arch: str | None, flags: Sequence[str]) -> str | None:
        """PTX at `output` for `arch`, or what nvcc takes unasked; what nvcc had to say if there is none. `flags` and
        errors as above."""
        said = [*_language(source), "-ptx", *_architecture(arch, flags), *flags]
        ran = self._run([*said, "-o", str(output.absolute()), str(source.absolute())])
        text = (ran.errors.decode(errors="replace") + ran.output.decode(errors="replace")).strip()
        if ran.problem is not None:
            return text if ran.ending is Ending.EXITED and text else f"nvcc: {ran.problem}"
        return None if output.is_file() else "nvcc has made no PTX: leave -c, -cubin and the like out of the flags"

    def compile_library(self, source: Path, output: Path) -> str | None:
        """A shared library of C++ that knows the headers of CUDA, but is not linked with it; what is wrong, if any."""
        ran = self._run(["-shared", "-O2", "-Xcompiler=-fPIC", "-cudart", "none", "-o", str(output), str(source)])
        if ran.problem is None:
            return None
        return ran.errors.decode(errors="replace").strip() or ran.problem

    def runtime_folders(self) -> tuple[str, ...]:
        """Where the toolkit's shared libraries are, for programs that are linked with them: its own linker finds them
        without being told, the system's loader need not."""
        ran = self._run(["--dryrun", "-x", "cu", os.devnull])
        for line in ran.errors.decode(errors="replace").splitlines():
            if line.startswith("#$ LIBRARIES="):
                given = [word.removeprefix("-L") for word in shlex.split(line.partition("=")[2])]
                return tuple(str(Path(folder).resolve()) for folder in given if Path(folder).name != "stubs")
        return ()

    def _run(self, arguments: Sequence[str]) -> ProgramRun:
        environment = {**os.environ, "TMPDIR": str(self.temporary)}
        try:
            return run_program([self.program, *arguments], limit_seconds=LIMIT_SECONDS, environment=environment)
        except OSError as error:
            raise EvidenceError(f"{self.program} cannot be started: {error.strerror or error}") from None


def _language(source: Path) -> Sequence[str]:
    """What tells nvcc that `source` is CUDA, where its name does not; nvcc would then take objects in flags for it."""
    if not source.is_file():
        raise EvidenceError(f"{source}: no such file", "name CUDA source files")
    if NOT_FOR_SHELLS.search(str(source.absolute())):
        raise EvidenceError(f"{source}: nvcc would hand this name to a shell", "rename the file or its folder")
    return () if source.suffix == ".cu" else ("-x", "cu")


def _architecture(arch: str | None, flags: Sequence[str]) -> Sequence[str]:
    named = any(flag.startswith(_NAMES_ARCHITECTURE) for flag in flags)
    return () if arch is None or named else (f"-arch={arch}",)


def find_nvcc() -> str | None:
    """The compiler on the PATH, or that of the CUDA toolkit at CUDA_HOME; None where there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc") or (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None)


def _without_report(text: str) -> str:
    """What is no line of `ptxas -v`, which says nothing of what went wrong."""
    return "\n".join(
        line
        for line in text.splitlines()
        if not line.startswith("ptxas info") and "bytes stack frame" not in line and line.strip()
    )

"""The line that reports an error names its cause, also if torch's compilers have wrapped it."""

from __future__ import annotations

import pytest
import torch

from frx_graph.errors import find_innermost_error, is_out_of_memory, suggest_remedy, summarize_error
from frx_graph.support.torch_internals import BackendCompilerFailed


class InvalidCxxCompiler(RuntimeError):
    """Has the name of Inductor's error."""


class CppCompileError(RuntimeError):
    """Has the name of Inductor's error."""


class LoweringException(RuntimeError):
    """Has the name of Inductor's error."""


def wrap_twice(error: Exception) -> BackendCompilerFailed:
    """Wrap an error as torch does if Inductor is called by another backend."""
    return BackendCompilerFailed("backend", BackendCompilerFailed("inductor", error, None), None)


def fail_in_lowering(error: ValueError) -> LoweringException:
    """Return an error raised `from None` while another one is handled."""
    try:
        try:
            raise error
        except ValueError:
            raise LoweringException("ValueError: cause\n  target: aten.add") from None
    except LoweringException as raised:
        return raised


def test_innermost_error_comes_first() -> None:
    cause = ValueError("sizes do not match\nand more")
    assert summarize_error(wrap_twice(cause)) == "ValueError: sizes do not match"
    assert find_innermost_error(wrap_twice(cause)) is cause
    assert summarize_error(wrap_twice(fail_in_lowering(cause))) == "ValueError: sizes do not match"
    assert summarize_error(LoweringException("without a cause")) == "LoweringException: without a cause"


def test_chained_error_of_another_kind_is_not_unwrapped() -> None:
    try:
        try:
            raise ValueError("first")
        except ValueError as first:
            raise RuntimeError("second") from first
    except RuntimeError as error:
        assert summarize_error(error) == "RuntimeError: second"


def test_missing_compiler_is_named_with_a_remedy() -> None:
    error = wrap_twice(InvalidCxxCompiler("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None,)"))
    assert summarize_error(error) == "Inductor finds no C++ compiler"
    assert suggest_remedy(error) == "install g++, or set CXX"
    assert suggest_remedy(ValueError("anything")) == ""


def test_known_errors_are_names_of_torch() -> None:
    exceptions = pytest.importorskip("torch._inductor.exc")
    for name in ("InvalidCxxCompiler", "TritonMissing", "CppCompileError", "LoweringException", "InductorError"):
        assert issubclass(getattr(exceptions, name), Exception)


def test_compile_error_quotes_the_compiler() -> None:
    text = (
        "C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\nx.cpp: In function 'f':\nx.cpp:3:1: error: expected ';'"
    )
    assert summarize_error(wrap_twice(CppCompileError(text))) == "CppCompileError: x.cpp:3:1: error: expected ';'"
    assert summarize_error(CppCompileError("C++ compile error")) == "CppCompileError: C++ compile error"


def test_memory_that_does_not_suffice_is_seen_through_wrappers() -> None:
    assert is_out_of_memory(wrap_twice(torch.OutOfMemoryError("")))
    assert not is_out_of_memory(wrap_twice(ValueError("x")))

"""Errors meant for people: what was wrong, where, and what to do next.

Everything that a user can cause derives from `FrxError`; the command line prints its one line and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


class FrxError(Exception):
    """An error that the user can act on: `message` names the problem and its place, `hint` the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """One line: the message, then the hint."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


def suggest_name(name: str, known: Collection[str], are: str) -> str:
    """Return a hint: the nearest of the `known` names, or all of them, which `are` names."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{are}: {', '.join(known)}"


NOT_THE_MODELS = (KeyboardInterrupt, SystemExit)
"""Exceptions that a model passes on, and does not cause: the user ends the program."""


_WRAPPERS = ("BackendCompilerFailed", "InductorError")
"""Errors of torch's compilers that keep the error of a backend as `inner_exception`."""
_KNOWN_ERRORS = {
    "InvalidCxxCompiler": ("Inductor finds no C++ compiler", "install g++, or set CXX"),
    "TritonMissing": ("Inductor finds no working Triton", "pip install triton"),
}
"""Message and hint for errors of torch that have one cause, by their type."""


def find_innermost_error(error: BaseException) -> BaseException:
    """Return the error that torch's compilers have wrapped; `error` itself if it wraps nothing."""
    while True:
        # By name, since this module does not import torch. Inductor raises a `LoweringException` while it handles the
        # cause, `from None`.
        name = type(error).__name__
        inner = error.__context__ if name == "LoweringException" else None
        if name in _WRAPPERS:
            inner = getattr(error, "inner_exception", None)
        if not isinstance(inner, BaseException):
            return error
        error = inner


def summarize_error(error: BaseException) -> str:
    """Return the type and the first line of the innermost error (see `find_innermost_error`), if its text can be
    read. Known errors of torch are described in plain words."""
    error = find_innermost_error(error)
    name = type(error).__name__
    if name in _KNOWN_ERRORS:
        return _KNOWN_ERRORS[name][0]
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - a user's own __str__ may raise anything
        lines = []
    text = next(iter(lines), "")
    if name == "CppCompileError":
        # The command comes first, then the compiler's own lines.
        text = next((line.strip() for line in lines if "error:" in line), text)
    return f"{name}: {text}" if text else name


def suggest_remedy(error: BaseException) -> str:
    """Return the hint for a known error of torch; empty for all others."""
    return _KNOWN_ERRORS.get(type(find_innermost_error(error)).__name__, ("", ""))[1]


_OUT_OF_MEMORY = ("DefaultCPUAllocator: ", "out of memory", "std::bad_alloc", "_STATUS_ALLOC_FAILED")
"""Texts of torch's allocator for the CPU (`c10/core/impl/alloc_cpu.cpp`), of drivers, C++, and CUDA's libraries."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if memory did not suffice, of the processor or of a device."""
    error = find_innermost_error(error)
    # Torch has a dedicated exception only for devices. This module does not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class TargetError(FrxError):
    """The model to advise on could not be loaded or built."""


class CaptureError(FrxError):
    """The model could not be captured as a graph."""


class PrepareError(FrxError):
    """A weight cannot be stored in another memory format; none of them was."""


class OptionError(FrxError):
    """An option, rule code or configuration value is unknown or out of range."""


class PolicyError(FrxError):
    """A trial policy cannot be read, or has a key that is unknown or a value out of range."""


class EvidenceError(FrxError):
    """An evidence file or log is missing, truncated, or not what it claims to be."""


class ContractError(FrxError):
    """An operator layout contract or rule card is malformed."""


class RewriteError(FrxError):
    """A rewrite could not be applied to a graph, which was left as it was."""


class SerializationError(FrxError):
    """A captured graph cannot be written as a file for another process, or a file cannot be read as one here."""


class LabellingError(FrxError):
    """No labels were found for a graph's operators that all its constraints allow."""


class LedgerError(FrxError):
    """The ledger cannot be opened, read, understood or appended to. The program goes on with the baseline."""


class LedgerMissingError(LedgerError):
    """There is no ledger yet, and so no decision."""


class LedgerRefusedError(LedgerError):
    """A decision must not follow an earlier one, perhaps of another process."""


class LedgerUnreachableError(LedgerError):
    """The ledger's server cannot be reached. A program that compiles does not wait for it."""


class LedgerUncertainError(LedgerUnreachableError):
    """The connection was lost during a commit, which may have succeeded or not."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; it is not known whether the append succeeded", hint)


class AgreementError(FrxError):
    """The ranks of a distributed program did not agree on a plan; all of them go on with the baseline."""


class TrialError(FrxError):
    """A trial could not be run to its end."""


class ScriptError(FrxError):
    """A training script cannot be read, or not be changed so that it can be undone; it was left as it was."""

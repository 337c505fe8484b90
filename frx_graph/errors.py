"""Errors meant for people: what was wrong, where, and what to do next.

Everything that a user can cause derives from `FrxError`; the command line prints its one line and exits with 2.
"""

from __future__ import annotations


class FrxError(Exception):
    """Something the user can act on. `message` says what was wrong and where, `hint` what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """One line: the message, then the hint."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


NOT_THE_MODELS = (KeyboardInterrupt, SystemExit)
"""Exceptions that may come out of a model without being its errors: they end the program."""


def first_line(error: BaseException) -> str:
    """The error's type and the first line of its text, also of one whose text cannot be had."""
    try:
        text = next(iter(str(error).strip().splitlines()), "")
    except Exception:  # noqa: BLE001 - a stranger's __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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


class TravelError(FrxError):
    """A captured graph cannot be written as a file for another process, or a file is not one that can be read here."""


class LabellingError(FrxError):
    """No labels were found for a graph's operators that all its constraints allow."""


class LedgerError(FrxError):
    """The ledger could not be opened, read, understood or appended to; what was to be appended was not. Whoever wanted
    a decision recorded goes on with the baseline."""


class LedgerMissingError(LedgerError):
    """There is no ledger yet, so nothing was decided."""


class LedgerRefusedError(LedgerError):
    """A decision must not follow what was decided before it, by somebody else perhaps."""


class LedgerUnreachableError(LedgerError):
    """There is no connection to the ledger's server. It may come back; a program that compiles does not wait for it."""


class LedgerUncertainError(LedgerUnreachableError):
    """The connection was lost while an append was committed, and not found again: it may have been kept or not."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; whether what was to be appended was kept is not known", hint)


class AgreementError(FrxError):
    """The ranks of a distributed program did not agree on a plan; all of them go on with the baseline."""


class TrialError(FrxError):
    """A trial could not be run to its end."""


class ScriptError(FrxError):
    """A training script cannot be read, or not be changed so that it can be undone; it was left as it was."""

"""The option `--build-flags`: what nvcc is given besides."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from frx_graph.errors import OptionError

BuildFlags = Annotated[str, typer.Option(help="Flags of nvcc, as in a shell: '-O3 -lcublas'.")]


def flag_words(flags: str) -> tuple[str, ...]:
    """As words. Raises `OptionError` for quotation marks that are not closed."""
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise OptionError(f"--build-flags {flags!r}: {error}", "quote them as in a shell") from None

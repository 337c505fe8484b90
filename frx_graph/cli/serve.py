"""`frx serve`: serve the analyses over HTTP, with a web page."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr, ValidationError

from frx_graph.cli.printing.output import QuietOption, print_notice
from frx_graph.config import read_advise_config
from frx_graph.errors import OptionError
from frx_graph.ledger.location import choose_location
from frx_graph.service.settings import MEGABYTE, TOKEN_VARIABLE, ServiceSettings, count_default_workers

_BODIES_AT_ONCE = 8
"""Number of request bodies of the largest size that are held at once; more get a 503."""


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; all but loopback need a token.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 8787,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File whose first line is the token; otherwise {TOKEN_VARIABLE}.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further host name of the service; may be repeated.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Concurrent analyses. Default: 4, or one per core.")
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="Analyses that may wait; further ones are asked to retry.")] = 64,
    max_upload_mb: Annotated[int, typer.Option(min=1, help="Largest request body, in megabytes.")] = 512,
    max_memory_mb: Annotated[int, typer.Option(min=64, help="Memory limit of one analysis, in megabytes.")] = 2048,
    time_limit_s: Annotated[float, typer.Option(min=0.1, help="Time limit of one analysis, in seconds.")] = 60.0,
    shutdown_s: Annotated[float, typer.Option(min=0.1, help="Seconds that accepted requests have to finish.")] = 30.0,
    ledger: Annotated[str | None, typer.Option(help="The ledger to show; default: as for frx ledger.")] = None,
    _quiet: QuietOption = False,
) -> None:
    """Serve the analyses over HTTP, with a web page. Ctrl-C or SIGTERM stops the service once accepted requests are
    done. Exit code 0: stopped; 2: an error."""
    try:
        from frx_graph.service.app import create_app
        from frx_graph.service.http.connection import make_server
    except ImportError as error:
        raise OptionError(f"frx serve needs the package {error.name}", "pip install 'frx-graph[serve]'") from error
    try:
        settings = ServiceSettings(
            host=host,
            port=port,
            token=_read_token(token_file),
            allowed_hosts=tuple(allow_host or ()),
            queue=queue,
            upload_bytes=max_upload_mb * MEGABYTE,
            held_bytes=_BODIES_AT_ONCE * max_upload_mb * MEGABYTE,
            analysis_bytes=max_memory_mb * MEGABYTE,
            analysis_seconds=time_limit_s,
            shutdown_seconds=shutdown_s,
            workers=workers or count_default_workers(),
        )
    except ValidationError as error:
        said = error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")
        hint = f"--token-file FILE, or {TOKEN_VARIABLE}: python -c 'import secrets; print(secrets.token_urlsafe())'"
        raise OptionError(f"frx serve: {said}", hint if "token" in said or "character" in said else "") from None
    location = choose_location(ledger, read_advise_config(Path.cwd()).ledger)
    server = make_server(create_app(settings, location), settings)
    with open_listening_socket(settings.host, settings.port) as opened:
        secured = "" if settings.token is None else ", with the token"
        address, number = opened.getsockname()[:2]
        named = f"[{address}]" if ":" in address else address
        print_notice(f"frx: serving at http://{named}:{number}{secured}; Ctrl-C stops")
        # uvicorn exits by itself if the application does not start.
        with _ignore_reraised_signals(), contextlib.suppress(SystemExit):
            server.run(sockets=[opened])
    if not server.started:
        raise OptionError("the service could not start", "see the messages above")


@contextlib.contextmanager
def _ignore_reraised_signals() -> Iterator[None]:
    """Ignore the signals that the server raises again after handling them."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `OptionError` if it cannot be opened."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        raise OptionError(
            f"frx serve cannot listen on {host}, port {port}: {error.strerror or error}", "--port 0 takes any free port"
        ) from None


def _read_token(file: Path | None) -> SecretStr | None:
    """Return the token from a file or the environment, since other users can read a process's arguments."""
    if file is None:
        given = os.environ.get(TOKEN_VARIABLE)
        return SecretStr(given) if given else None
    try:
        return SecretStr(file.read_text(encoding="utf-8-sig").partition("\n")[0].strip())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--token-file {file} cannot be read: {error}", "name a file of one line") from None

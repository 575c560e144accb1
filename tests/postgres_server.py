"""A PostgreSQL server to test against: Debian's, in a folder of its own, of a user other than root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from itertools import count
from pathlib import Path

from object_server import free_port

USER = "nobody"


def programs() -> Path:
    """The folder of `initdb` and `pg_ctl`; without one the tests that need it fail, and say how to get it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise AssertionError("no PostgreSQL server: apt-get install postgresql")
    return (found[-1] if found else Path(str(on_path))).parent


class PostgresServer:
    """The server, on a port of its own of this machine, with one database a call of `url`."""

    def __init__(self, folder: Path) -> None:
        self._programs, self._folder, self.port, self._numbers = programs(), folder / "postgres", free_port(), count(1)
        self._folder.mkdir()
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(self._folder, USER)
            for above in (folder, *folder.parents):
                above.chmod(above.stat().st_mode | 0o011) if above.stat().st_uid == 0 and above != Path("/") else None
        self._run("initdb", "-D", str(self._folder / "data"), "-U", "dpdist", "--auth", "trust", "--no-sync")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-t", "60", "-l", log, "-o", options, "start")

    def url(self) -> str:
        """Of a new, empty database."""
        name = f"ledger_{next(self._numbers)}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "dpdist", name)
        return f"postgresql://dpdist:secret-word@127.0.0.1:{self.port}/{name}"

    def close(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *said: str) -> None:
        root = os.geteuid() == 0
        known = pwd.getpwnam(USER) if root else None
        done = subprocess.run(
            [str(self._programs / program), *said],
            cwd="/",
            user=known.pw_uid if known else None,
            group=known.pw_gid if known else None,
            extra_groups=[] if known else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}"

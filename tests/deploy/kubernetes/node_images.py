"""Images for the nodes of a cluster: unpacked once, shared by all nodes of every cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from network import PLUGINS

PAUSE, NAMES, METRICS = "localhost/pause:1", "localhost/coredns:1", "localhost/metrics-server:1"
HOLDER = """#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
"""
SETTINGS = """version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{network}"
"""


def command(*said: object, check: bool = True, text: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command; raises with what it says on standard error."""
    told = {**os.environ, **(env or {})}
    done = subprocess.run(list(map(str, said)), input=text, capture_output=True, text=True, check=False, env=told)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, said))}: {done.stderr[-1500:]}{done.stdout[-500:]}")
    return done.stdout


def settings(place: Path, root: Path, plugins: Path = PLUGINS) -> Path:
    """The settings of a containerd whose files are at `place`, with a folder of network plugins."""
    file = place / "containerd.toml"
    socket, state = place / "containerd.sock", place / "state"
    where = {"root": root, "state": state, "socket": socket, "network": place / "network", "plugins": plugins}
    file.write_text(SETTINGS.format(pause=PAUSE, **where))
    return file


def archive(tag: str, program: Path, folder: Path) -> Path:
    """An image of nothing but a program that needs no library."""
    name = tag.partition("/")[2].partition(":")[0]
    file, place = folder / f"{name}.tar", folder / name
    if not file.exists():
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(program, place / name)
        (place / "Dockerfile").write_text(f'FROM scratch\nCOPY {name} /{name}\nENTRYPOINT ["/{name}"]\n')
        (place / "containers.conf").write_text('[engine]\nruntime = "runc"\n')
        env = {"CONTAINERS_CONF": str(place / "containers.conf")}
        command("buildah", "bud", "--quiet", "--tag", tag, place, env=env)
        command("buildah", "push", "--quiet", tag, f"docker-archive:{file}:{tag}", env=env)
    return file


class Stock:
    """A containerd's folder with images unpacked. A node gets it by hard links: the layers are never written to."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        folder.mkdir(parents=True, exist_ok=True)
        holder = folder / "holder"
        if not holder.exists():
            command("gcc", "-static", "-Os", "-s", "-x", "c", "-o", holder, "-", text=HOLDER)
        own = {PAUSE: holder, NAMES: programs / "coredns", METRICS: programs / "metrics-server"}
        self.load(*(archive(tag, program, folder / "made") for tag, program in own.items() if program.exists()))

    def load(self, *archives: Path) -> None:
        """Unpack the images of archives that are not here yet."""
        record = self.folder / "loaded.json"
        known: dict[str, list[int]] = json.loads(record.read_text()) if record.exists() else {}
        state = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in archives}
        missing = [path for path in archives if known.get(str(path)) != state[str(path)]]
        if not missing:
            return
        with (self.folder / "containerd.log").open("ab") as log:
            line = ["containerd", "--config", str(settings(self.folder, self.root)), "--log-level", "warn"]
            process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        try:
            socket = self.folder / "containerd.sock"
            while not socket.exists():
                assert process.poll() is None
                time.sleep(0.1)
            for path in missing:
                command("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", path)
                record.write_text(json.dumps(known := known | {str(path): state[str(path)]}))
        finally:
            process.terminate()
            process.wait()
            (self.folder / "containerd.sock").unlink(missing_ok=True)

    def share(self, root: Path) -> None:
        """The images as a node's own: what containerd keeps of them is copied, the images themselves are linked."""
        command("cp", "--archive", "--link", self.root, root)
        for path in root.rglob("*.db"):
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)

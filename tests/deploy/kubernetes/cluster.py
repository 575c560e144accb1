"""A Kubernetes cluster on one machine: every node in a network namespace of its own, with its own containerd, kubelet and proxy.

The programs are those of build.sh, and etcd, containerd, runc and the network plugins of Debian. Nobody but the nodes reaches it:
the bridge has no way out. Needs root on Linux. What it starts it ends, and it puts back the kernel settings that kubelets change.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BRIDGE, CONTROL, SERVICES, NAMES = "dpk0", "10.98.0.1", "10.97.0.0/16", "10.97.0.10"
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
CGROUPS = Path("/sys/fs/cgroup")
USERS = {
    "admin": ("admin", "system:masters"),
    "controller": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", "system:node-proxier"),
}
PAUSE = """#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
"""


def command(*said: object, check: bool = True, text: str | None = None) -> str:
    """Standard output of a command; raises with what it says on standard error."""
    done = subprocess.run(list(map(str, said)), input=text, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, said))}: {done.stderr[-1500:]}{done.stdout[-500:]}")
    return done.stdout


class Cluster:
    """A control plane and nodes, `node1` and on; everything it keeps is in `folder`, its programs in `programs`."""

    def __init__(self, folder: Path, programs: Path, nodes: int = 3) -> None:
        self.folder, self.programs = folder, programs
        self.nodes = [f"node{k}" for k in range(1, nodes + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings = {name: Path("/proc/sys", name).read_text() for name in SETTINGS}
        for name in ("logs", "config", "certificates"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        self._links()
        self._control_plane()
        for name in self.nodes:
            self.start_node(name)
        self.until(lambda: self.kubectl("get", "nodes", "-o", "name").count("node/") == len(self.nodes), "nodes")
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=180s")

    def kubectl(self, *said: object, text: str | None = None, check: bool = True) -> str:
        return command(self.programs / "kubectl", "--kubeconfig", self.config("admin"), *said, text=text, check=check)

    def config(self, user: str) -> Path:
        return self.folder / "config" / f"{user}.json"

    def until(self, condition: object, what: str, patience: float = 240.0) -> None:
        """Wait until the condition holds; one that raises does not hold."""
        deadline, last = time.monotonic() + patience, ""
        while time.monotonic() < deadline:
            try:
                if condition():  # type: ignore[operator]
                    return
            except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
                last = str(error)
            time.sleep(0.5)
        raise AssertionError(f"{what}: not within {patience:.0f} s. {last}")

    def run(self, name: str, *said: object, node: str | None = None) -> None:
        """Start a process, in a node's network namespace if one is named. Its log is `logs/NAME`."""
        prefix = ["nsenter", f"--net=/run/netns/{BRIDGE}-{node}"] if node else []
        with (self.folder / "logs" / name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*prefix, *map(str, said)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _links(self) -> None:
        command("ip", "link", "add", BRIDGE, "type", "bridge")
        command("ip", "addr", "add", f"{CONTROL}/24", "dev", BRIDGE)
        command("ip", "link", "set", BRIDGE, "up")
        for k, name in enumerate(self.nodes, 1):
            space, inside = f"{BRIDGE}-{name}", ["ip", "-n", f"{BRIDGE}-{name}"]
            command("ip", "netns", "add", space)
            command("ip", "link", "add", f"dpk-{k}", "type", "veth", "peer", "name", "eth0", "netns", space)
            command("ip", "link", "set", f"dpk-{k}", "master", BRIDGE, "up")
            command(*inside, "addr", "add", f"10.98.0.{10 + k}/24", "dev", "eth0")
            command(*inside, "link", "set", "eth0", "up")
            command(*inside, "link", "set", "lo", "up")
            command(*inside, "route", "add", "default", "via", CONTROL)
            for other in range(1, len(self.nodes) + 1):
                if other != k:
                    command(*inside, "route", "add", f"10.244.{other}.0/24", "via", f"10.98.0.{10 + other}")
            command("ip", "route", "add", f"10.244.{k}.0/24", "via", f"10.98.0.{10 + k}")
            settings = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.bridge.bridge-nf-call-iptables=1")
            command("nsenter", f"--net=/run/netns/{space}", "sysctl", "-qw", *settings, check=False)

    def _control_plane(self) -> None:
        keys, etcd = self.folder / "certificates", "http://127.0.0.1:23790"
        command("openssl", "genrsa", "-out", keys / "accounts.key", "2048")
        self._tokens = {user: secrets.token_hex(16) for user in (*USERS, *self.nodes)}
        lines = [f'{self._tokens[user]},{name},{user},"{groups}"' for user, (name, groups) in USERS.items()]
        lines += [f'{self._tokens[name]},system:node:{name},{name},"system:nodes"' for name in self.nodes]
        (keys / "tokens.csv").write_text("\n".join(lines) + "\n")
        self.run("etcd", "etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
                 "--listen-peer-urls", "http://127.0.0.1:23800")  # fmt: skip
        self.run("apiserver", self.programs / "kube-apiserver", "--etcd-servers", etcd, "--bind-address", CONTROL,
                 "--advertise-address", CONTROL, "--cert-dir", keys, "--token-auth-file", keys / "tokens.csv",
                 "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keys / "accounts.key",
                 "--service-account-signing-key-file", keys / "accounts.key", "--service-cluster-ip-range", SERVICES,
                 "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction")  # fmt: skip
        self.until((keys / "apiserver.crt").exists, "the API server's certificate")
        for user, token in self._tokens.items():
            self._write_config(user, token)
        self.until(lambda: self.kubectl("get", "--raw", "/readyz") == "ok", "API server")
        for name, user, more in (
            ("controller-manager", "controller", ["--service-account-private-key-file", keys / "accounts.key",
                                                  "--root-ca-file", keys / "apiserver.crt", "--use-service-account-credentials"]),
            ("scheduler", "scheduler", []),
        ):  # fmt: skip
            self.run(name, self.programs / f"kube-{name}", "--kubeconfig", self.config(user), "--leader-elect=false", *more)

    def _write_config(self, user: str, token: str) -> None:
        server = {
            "server": f"https://{CONTROL}:6443",
            "certificate-authority": str(self.folder / "certificates" / "apiserver.crt"),
        }
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "one", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": user}}],
            "current-context": "one",
        }
        self.config(user).write_text(json.dumps(said))

    def start_node(self, name: str) -> None:
        """containerd, kubelet and proxy of a node."""
        place, number = self.folder / name, name.removeprefix("node")
        (place / "network").mkdir(parents=True, exist_ok=True)
        socket = place / "containerd.sock"
        (place / "containerd.toml").write_text(CONTAINERD.format(place=place, socket=socket))
        (place / "network" / "10-bridge.conflist").write_text(NETWORK.replace("NUMBER", number))
        self.run(
            f"{name}-containerd", "containerd", "--config", place / "containerd.toml", "--log-level", "warn", node=name
        )
        self.until(socket.exists, f"containerd of {name}", 30)
        for controller in (path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists()):
            (controller / f"dpk-{name}").mkdir(exist_ok=True)
        (place / "resolv.conf").write_text("")
        (place / "kubelet.json").write_text(json.dumps(KUBELET | {
            "containerRuntimeEndpoint": f"unix://{socket}", "cgroupRoot": f"/dpk-{name}", "podLogsDir": str(place / "pods"),
            "resolvConf": str(place / "resolv.conf"),
        }))  # fmt: skip
        self.load(self._pause(), name)
        self.run(f"{name}-kubelet", self.programs / "kubelet", "--kubeconfig", self.config(name), "--config", place / "kubelet.json",
                 "--root-dir", place / "kubelet", "--hostname-override", name, "--node-ip", f"10.98.0.{10 + int(number)}",
                 node=name)  # fmt: skip
        self.run(f"{name}-proxy", self.programs / "kube-proxy", "--kubeconfig", self.config("proxy"), "--hostname-override", name,
                 "--proxy-mode", "iptables", "--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0",
                 "--conntrack-tcp-timeout-close-wait", "0", "--cluster-cidr", "10.244.0.0/16", node=name)  # fmt: skip

    def load(self, archive: Path, *nodes: str) -> None:
        """An image from an archive, into every node or those that are named."""
        for name in nodes or self.nodes:
            socket = self.folder / name / "containerd.sock"
            command(
                "ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", "--no-unpack", archive, check=False
            )
            command("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", archive)

    def _pause(self) -> Path:
        """The image of what holds a pod's namespaces open."""
        archive, place = self.folder / "pause.tar", self.folder / "pause"
        if not archive.exists():
            place.mkdir()
            command("gcc", "-static", "-Os", "-s", "-x", "c", "-o", place / "pause", "-", text=PAUSE)
            self.image("localhost/pause:1", place, 'COPY pause /pause\nENTRYPOINT ["/pause"]\n', archive)
        return archive

    def image(self, tag: str, place: Path, lines: str, archive: Path) -> None:
        """An image of nothing but a program, as an archive."""
        (place / "Dockerfile").write_text("FROM scratch\n" + lines)
        command("buildah", "bud", "--quiet", "--tag", tag, place)
        command("buildah", "push", "--quiet", tag, f"docker-archive:{archive}:{tag}")

    def stop_node(self, name: str) -> None:
        """A node that is lost: its processes and those of its pods end at once."""
        for part in ("kubelet", "proxy", "containerd"):
            self._end(f"{name}-{part}")
        self._end_pods(name)

    def _end(self, name: str, how: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name, None)
        if process is not None and process.poll() is None:
            os.killpg(process.pid, how)
            process.wait()

    def _end_pods(self, name: str) -> None:
        """Everything in the node's control groups, and the shims that held it; they carry the node's socket in their command line."""
        deadline, root = time.monotonic() + 20, CGROUPS / "pids" / f"dpk-{name}"
        while time.monotonic() < deadline:
            found = [int(pid) for file in root.rglob("cgroup.procs") for pid in file.read_text().split()]
            found += [pid for pid, line in _lines() if "containerd-shim" in line and str(self.folder / name) in line]
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.2)

    def stop(self) -> None:
        for name in [*(f"{node}-kubelet" for node in self.nodes), *(f"{node}-proxy" for node in self.nodes)]:
            self._end(name)
        for name in self.nodes:
            self.stop_node(name)
        for name in list(self.processes):
            self._end(name)
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line]
        for path in sorted(mounted, reverse=True):
            command("umount", "--lazy", path, check=False)
        for k, name in enumerate(self.nodes, 1):
            command("ip", "netns", "del", f"{BRIDGE}-{name}", check=False)
            command("ip", "link", "del", f"dpk-{k}", check=False)
            for root in CGROUPS.glob(f"*/dpk-{name}"):
                for path in sorted((p for p in root.rglob("*") if p.is_dir()), reverse=True):
                    with suppress(OSError):
                        path.rmdir()
                with suppress(OSError):
                    root.rmdir()
        command("ip", "link", "del", BRIDGE, check=False)
        for name, value in self._settings.items():
            with suppress(OSError):
                Path("/proc/sys", name).write_text(value)


def _lines() -> Iterator[tuple[int, str]]:
    """Every process and its command line."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


@contextmanager
def running(folder: Path, programs: Path, nodes: int = 3) -> Iterator[Cluster]:
    """A cluster that leaves no process, mount or namespace behind."""
    shutil.rmtree(folder, ignore_errors=True)
    cluster = Cluster(folder, programs, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


CONTAINERD = """version = 2
root = "{place}/containerd"
state = "{place}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{place}/network"
"""
NETWORK = """{"cniVersion": "0.4.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/dpk-nodeNUMBER", "ranges": [[{"subnet": "10.244.NUMBER.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
"""
KUBELET: Mapping[str, object] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "clusterDNS": [NAMES],
    "clusterDomain": "cluster.local",
    "oomScoreAdj": 0,
    "evictionHard": {"memory.available": "200Mi"},
    "imageGCHighThresholdPercent": 100,
    "serializeImagePulls": True,
    "nodeStatusUpdateFrequency": "4s",
    "enableControllerAttachDetach": False,
}


def arguments_of(cluster: Cluster) -> Sequence[str]:
    """How to speak to a running cluster by hand."""
    return [str(cluster.programs / "kubectl"), "--kubeconfig", str(cluster.config("admin"))]

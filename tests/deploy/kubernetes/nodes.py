"""A Kubernetes cluster on one machine: each node in a network namespace, with its own containerd, kubelet and proxy.

The programs are those of build.sh, and etcd, containerd, runc and the network plugins of Debian. Only nodes reach the
bridge, which has no way out. It needs root on Linux. What it starts it ends. It puts back the kernel's settings that
kubelets change.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from network import READY, definitions, felix, has_calico, plugins, write_network
from node_images import Stock, command, settings

BRIDGE, CONTROL, SERVICES, NAMES = "dpk0", "10.98.0.1", "10.97.0.0/16", "10.97.0.10"
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
CGROUPS, SPACES = Path("/sys/fs/cgroup"), Path("/run/netns")
LEFT = {SPACES: "cni-*", **{Path("/var", name): "*" for name in ("log/containers", "lib/cni/results", "lib/kubelet")}}
"""Folders that nodes leave something in, and its names."""
USERS = {
    "admin": ("admin", "system:masters"),
    "controller": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", "system:node-proxier"),
}


def options(**said: object) -> list[str]:
    """As a command line has them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in said.items()]


class Cluster:
    """A control plane and nodes, `node1` and on; everything it keeps is in `folder`, its programs in `programs`."""

    def __init__(self, folder: Path, programs: Path, stock: Stock, nodes: int = 3) -> None:
        self.folder, self.programs, self.stock = folder, programs, stock
        self.nodes = [f"node{k}" for k in range(1, nodes + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings = {name: Path("/proc/sys", name).read_text() for name in SETTINGS}
        self._left = {path: set(path.glob(names)) for path, names in LEFT.items()}
        for name in ("logs", "config", "certificates"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        self._links()
        self._control_plane()
        if has_calico(self.programs):
            self._define_policies()
        for name in self.nodes:
            self.start_node(name)
        self.until(lambda: self.kubectl("get", "nodes", "-o", "name").count("node/") == len(self.nodes), "nodes")
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=180s")
        self.add("names.yaml")
        self.kubectl("-n", "kube-system", "wait", "--for=condition=Available", "deployment/coredns", "--timeout=180s")

    def _define_policies(self) -> None:
        kinds = definitions(self.programs)
        self.kubectl("apply", "--server-side", "-f", kinds)
        self.kubectl("wait", "--for=condition=Established", "-f", kinds, "--timeout=60s")
        self.kubectl("apply", "-f", "-", text=READY)

    def add(self, manifests: str) -> None:
        """Manifests that lie beside this file."""
        self.kubectl("apply", "-f", Path(__file__).with_name(manifests))

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
        front = ["-keyout", keys / "front.key", "-out", keys / "front.crt", "-subj", "/CN=front"]
        command("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *front)  # shown to servers of further APIs
        self._tokens = {user: secrets.token_hex(16) for user in (*USERS, *self.nodes)}
        lines = [f'{self._tokens[user]},{name},{user},"{groups}"' for user, (name, groups) in USERS.items()]
        lines += [f'{self._tokens[name]},system:node:{name},{name},"system:nodes"' for name in self.nodes]
        (keys / "tokens.csv").write_text("\n".join(lines) + "\n")
        self.run("etcd", "etcd", *options(
            data_dir=self.folder / "etcd", listen_client_urls=etcd, advertise_client_urls=etcd,
            listen_peer_urls="http://127.0.0.1:23800",
        ))  # fmt: skip
        self.run("apiserver", self.programs / "kube-apiserver", *options(
            etcd_servers=etcd, bind_address=CONTROL, advertise_address=CONTROL,
            cert_dir=keys, token_auth_file=keys / "tokens.csv",
            service_account_issuer="https://kubernetes.default.svc", service_account_key_file=keys / "accounts.key",
            service_account_signing_key_file=keys / "accounts.key", service_cluster_ip_range=SERVICES,
            authorization_mode="Node,RBAC", enable_admission_plugins="NodeRestriction",
            kubelet_preferred_address_types="InternalIP", enable_aggregator_routing="true",
            requestheader_client_ca_file=keys / "front.crt", requestheader_username_headers="X-Remote-User",
            requestheader_group_headers="X-Remote-Group", requestheader_extra_headers_prefix="X-Remote-Extra-",
            proxy_client_cert_file=keys / "front.crt", proxy_client_key_file=keys / "front.key",
        ))  # fmt: skip
        self.until((keys / "apiserver.crt").exists, "the API server's certificate")
        for user, token in self._tokens.items():
            self._write_config(user, token)
        self.until(lambda: self.kubectl("get", "--raw", "/readyz") == "ok", "API server")
        manager = options(
            service_account_private_key_file=keys / "accounts.key",
            root_ca_file=keys / "apiserver.crt",
            use_service_account_credentials="true",
        )
        for name, user, more in (("controller-manager", "controller", manager), ("scheduler", "scheduler", [])):
            own = options(kubeconfig=self.config(user), leader_elect="false")
            self.run(name, self.programs / f"kube-{name}", *own, *more)

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
        write_network(place, name, f"10.244.{number}.0/24", self.programs, self.config("admin"))
        socket = place / "containerd.sock"
        socket.unlink(missing_ok=True)  # of a node that was lost
        if not (place / "containerd").exists():
            self.stock.share(place / "containerd")
        config = settings(place, place / "containerd", plugins(place, self.programs))
        self.run(f"{name}-containerd", "containerd", "--config", config, "--log-level", "warn", node=name)
        self.until(socket.exists, f"containerd of {name}", 30)
        for controller in (path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists()):
            (controller / f"dpk-{name}").mkdir(exist_ok=True)
            for own in controller.glob("cpuset.[cm][pe][um]s"):  # a new group of this controller has none
                (controller / f"dpk-{name}" / own.name).write_text(own.read_text())
        (place / "resolv.conf").write_text("")
        (place / "kubelet.json").write_text(json.dumps(KUBELET | {
            "containerRuntimeEndpoint": f"unix://{socket}", "cgroupRoot": f"/dpk-{name}", "podLogsDir": str(place / "pods"),
            "resolvConf": str(place / "resolv.conf"),
        }))  # fmt: skip
        self.run(f"{name}-kubelet", self.programs / "kubelet", *options(
            kubeconfig=self.config(name), config=place / "kubelet.json", root_dir=place / "kubelet", hostname_override=name,
            node_ip=f"10.98.0.{10 + int(number)}",
        ), node=name)  # fmt: skip
        self.run(f"{name}-proxy", self.programs / "kube-proxy", *options(
            kubeconfig=self.config("proxy"), hostname_override=name, proxy_mode="iptables", cluster_cidr="10.244.0.0/16",
            conntrack_max_per_core=0, conntrack_tcp_timeout_established=0, conntrack_tcp_timeout_close_wait=0,
        ), node=name)  # fmt: skip
        if has_calico(self.programs):
            self.run(f"{name}-felix", *felix(name, self.programs, self.config("admin")), node=name)

    def stop_node(self, name: str) -> None:
        """A node that is lost: its processes and those of its pods end at once."""
        for part in ("kubelet", "proxy", "felix", "containerd"):
            self._end(f"{name}-{part}")
        self._end_pods(name)

    def _end(self, name: str, how: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name, None)
        if process is not None and process.poll() is None:
            os.killpg(process.pid, how)
            process.wait()

    def _end_pods(self, name: str) -> None:
        """Everything in the node's control groups, and the shims that held it, whose command line names the socket."""
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
        for name in (f"{node}-{part}" for part in ("kubelet", "proxy") for node in self.nodes):
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
        for path, before in self._left.items():
            for found in set(path.glob(LEFT[path])) - before:
                if path == SPACES:
                    command("ip", "netns", "del", found.name, check=False)
                else:
                    shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()
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
def running(folder: Path, programs: Path, stock: Stock, nodes: int = 3) -> Iterator[Cluster]:
    """A cluster that leaves no process, mount or namespace behind, also where it is told to end (SIGTERM)."""
    if Path("/sys/class/net", BRIDGE).exists():
        raise RuntimeError(f"a cluster of this kind is there, or was not ended: the network link {BRIDGE} exists")
    shutil.rmtree(folder, ignore_errors=True)
    cluster = Cluster(folder, programs, stock, nodes)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        signal.signal(signal.SIGTERM, before)


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

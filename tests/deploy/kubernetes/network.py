"""How pods of a node reach each other: by Debian's bridge, or by Calico where build_calico.sh has built it.

Calico also enforces network policies. Its plugin gives each pod a link of its own, and its agent, felix, writes the rules
of every node. Felix reads pods and policies from the API server, so nothing but its definitions is added to the cluster.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLUGINS = Path("/usr/lib/cni")
DEFINITIONS = "calico-definitions"
"""Folder beside the programs."""
READY = """apiVersion: crd.projectcalico.org/v1
kind: ClusterInformation
metadata: {name: default}
spec: {datastoreReady: true, clusterGUID: "00000000000000000000000000000001"}
"""
"""Felix and the plugin wait for this."""


def has_calico(programs: Path) -> bool:
    return (programs / "calico-felix").exists()


def definitions(programs: Path) -> Path:
    """What Calico keeps in the API server."""
    return programs.parent / DEFINITIONS


def plugins(place: Path, programs: Path) -> Path:
    """The folder of a node's plugins: Debian's, and Calico's where it was built."""
    folder = place / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*PLUGINS.iterdir(), *([programs / "calico"] if has_calico(programs) else [])]:
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())
    return folder


def write_network(place: Path, name: str, subnet: str, programs: Path, config: Path) -> None:
    """The network of a node's pods, as its containerd reads it."""
    addresses = {"type": "host-local", "dataDir": str(place / "addresses"), "ranges": [[{"subnet": subnet}]]}
    first: dict[str, Any] = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    first["ipam"] = addresses | {"routes": [{"dst": "0.0.0.0/0"}]}
    if has_calico(programs):
        first = {"type": "calico", "datastore_type": "kubernetes", "mtu": 1500, "ipam": addresses}
        first |= {"nodename": name, "nodename_file_optional": True}
        first |= {"policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": str(config)}}
        first |= {"log_level": "warning", "log_file_path": str(place / "calico.log")}
    parts = [first, {"type": "portmap", "capabilities": {"portMappings": True}}]
    said = {"cniVersion": "0.4.0", "name": "pods", "plugins": parts}
    (place / "network").mkdir(parents=True, exist_ok=True)
    (place / "network" / "10-pods.conflist").write_text(json.dumps(said))


def felix(name: str, programs: Path, config: Path) -> list[object]:
    """The command line of a node's felix: rules for pods' links only; what a pod says to its own node is let through."""
    settings = {
        "DatastoreType": "kubernetes",
        "FelixHostname": name,
        "InterfacePrefix": "cali",
        "IptablesBackend": "NFT",
        "DefaultEndpointToHostAction": "ACCEPT",
        "LogFilePath": "none",
        "LogSeverityScreen": "Warning",
        "Ipv6Support": "false",
        "XDPEnabled": "false",
        "UsageReportingEnabled": "false",
        "DebugSkipCTLBCleanup": "true",
    }
    said = [f"FELIX_{key}={value}" for key, value in settings.items()]
    return ["env", f"KUBECONFIG={config}", *said, programs / "calico-felix"]

"""Network policies enforced in packets, by the tests, where Calico was not built.

Every second it reads policies, pods and namespaces, and writes what they allow as rules of iptables into every node. It
knows what the shipped manifests use: selectors of pods and namespaces, blocks of addresses, ports by number and by name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

from node_images import command
from nodes import BRIDGE, Cluster

Said = dict[str, Any]


def _selects(selector: Said, labels: Said) -> bool:
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    operators = {"In": lambda value, values: value in values, "NotIn": lambda value, values: value not in values}
    rules = selector.get("matchExpressions", [])
    return all(operators[one["operator"]](labels.get(one["key"]), one["values"]) for one in rules)


class Policies(threading.Thread):
    """Runs until it is ended; `written` tells that the rules in force follow from the policies of now."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.over, self.written, self._last = cluster, threading.Event(), threading.Event(), ""

    def run(self) -> None:
        while not self.over.wait(1.0):
            try:
                self.write()
            except (RuntimeError, ValueError):  # while something ends; the rules in force stay
                continue

    def end(self) -> None:
        self.over.set()
        self.join()

    def write(self) -> None:
        kinds = ("networkpolicies", "pods", "namespaces")
        items = json.loads(self.cluster.kubectl("get", ",".join(kinds), "-A", "-o", "json"))["items"]
        policies = [one for one in items if one["kind"] == "NetworkPolicy"]
        pods = [one for one in items if one["kind"] == "Pod" and one["status"].get("podIP")]
        pods = [
            one for one in pods if one["status"]["phase"] in ("Pending", "Running")
        ]  # ended ones give their address back
        spaces = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in items if one["kind"] == "Namespace"}
        rules = [":dpk-policies - [0:0]", "-A dpk-policies -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
        for number, pod in enumerate(pods):
            for way, side in (("Egress", "s"), ("Ingress", "d")):
                allowed = self._rules(pod, way, policies, pods, spaces)
                if allowed is None:
                    continue
                chain = f"dpk-{way}-{number}"
                rules += [f":{chain} - [0:0]", f"-A dpk-policies -{side} {pod['status']['podIP']} -j {chain}"]
                rules += [f"-A {chain} {one} -j RETURN" for one in sorted(allowed)] + [f"-A {chain} -j DROP"]
        text = (
            "*filter\n" + "\n".join([*(r for r in rules if r[0] == ":"), *(r for r in rules if r[0] == "-")]) + "\nCOMMIT\n"
        )
        if text != self._last:
            for node in self.cluster.nodes:
                inside = ["nsenter", f"--net=/run/netns/{BRIDGE}-{node}"]
                command(*inside, "iptables-restore", "--noflush", text=text)
                if "-j dpk-policies" not in command(*inside, "iptables", "-S", "FORWARD"):
                    command(*inside, "iptables", "-I", "FORWARD", "-j", "dpk-policies")
            self._last = text
        self.written.set()

    def _rules(self, pod: Said, way: str, policies: list[Said], pods: list[Said], spaces: Said) -> set[str] | None:
        """What a pod may do, as matches of iptables; None if no policy concerns it."""
        own = [
            one["spec"]
            for one in policies
            if one["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and way in one["spec"]["policyTypes"]
            and _selects(one["spec"]["podSelector"], pod["metadata"].get("labels", {}))
        ]
        if not own:
            return None
        key, side, mark = ("egress", "to", "d") if way == "Egress" else ("ingress", "from", "s")
        found = set[str]()
        for rule in (rule for policy in own for rule in policy.get(key, [])):
            for peer in rule.get(side, []):
                for address, other in self._addresses(peer, pod["metadata"]["namespace"], pods, spaces):
                    server = other if way == "Egress" else pod
                    found |= {f"-{mark} {address}{port}" for port in _ports(rule, server)}
        return found

    def _addresses(self, peer: Said, space: str, pods: list[Said], spaces: Said) -> Iterator[tuple[str, Said | None]]:
        if "ipBlock" in peer:
            yield peer["ipBlock"]["cidr"], None
            return
        for pod in pods:
            within = pod["metadata"]["namespace"]
            right = _selects(peer["namespaceSelector"], spaces[within]) if "namespaceSelector" in peer else within == space
            if right and _selects(peer.get("podSelector", {}), pod["metadata"].get("labels", {})):
                yield pod["status"]["podIP"], pod


def _ports(rule: Said, server: Said | None) -> Iterator[str]:
    """The ports of a rule; one by name is that of the pod that listens."""
    if "ports" not in rule:
        yield ""
    for one in rule.get("ports", []):
        number = one["port"]
        if isinstance(number, str):
            listed = [port for c in server["spec"]["containers"] for port in c.get("ports", [])] if server else []
            number = next((port["containerPort"] for port in listed if port.get("name") == number), None)
        if number is not None:
            yield f" -p {one.get('protocol', 'TCP').lower()} --dport {number}"

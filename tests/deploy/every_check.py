"""Every check of manifests by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import manifest_checks as checks
import manifest_security as security
from manifest_network import network
from manifest_store import storage
from rendering import Objects

CHECKS: dict[str, Callable[[Objects], Iterator[str]]] = {
    check.__name__: check
    for check in (
        *(checks.restarts, checks.final_exits, checks.quantities, checks.selectors, checks.ports, checks.probes),
        *(
            checks.mounts,
            security.roles_secrets,
            security.no_secret_in_the_open,
            security.hardened,
            security.images,
            security.rights,
            security.admission,
        ),
        network,
        storage,
    )
}
LEAST = "1.31"
"""The least version of Kubernetes that deploy/README.md names."""

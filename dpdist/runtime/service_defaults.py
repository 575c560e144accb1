"""Default port, HTTP address and waiting time (in seconds) of a cluster's scheduler and workers."""

from __future__ import annotations

PORT = 8786
HTTP = "127.0.0.1:0"
PATIENCE = 300.0

"""Gives access to cmdstanpy and to what it installs: CmdStan's folder, and the variables of a Stan CSV file.

Only this file imports cmdstanpy, and only at first use. It silences cmdstanpy's log, which would name private folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpdist.core.errors import ToolchainError


def cmdstanpy() -> Any:
    """The module cmdstanpy. Raises `ToolchainError` where it is not installed."""
    try:
        import cmdstanpy as module
    except ImportError:
        raise ToolchainError("cmdstanpy is not installed", "the extra 'stan'", "pip install 'dpdist[stan]'") from None
    module.disable_logging()
    return module


def installed_cmdstan() -> Path | None:
    """The folder of the user's CmdStan, as cmdstanpy finds it: $CMDSTAN, or the latest in ~/.cmdstan; None without one."""
    try:
        return Path(cmdstanpy().cmdstan_path())
    except ValueError:
        return None


def variables(header: str) -> dict[str, Any]:
    """Variables in a Stan CSV file, by name, from its header line. `extract_reshape` takes their values from a row."""
    import stanio

    return dict(stanio.parse_header(header))

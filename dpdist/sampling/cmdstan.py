"""For `sampling.toolchain` and `stan`: the user's CmdStan as a toolchain, and access to cmdstanpy.

Only this file imports cmdstanpy, and only at first use. It silences cmdstanpy's log, which would name private folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdist.core.errors import ProgramError, ToolchainError, install
from dpdist.core.files import sha256
from dpdist.sampling.building import (
    shipped_folder,
    tail,
    turn,
    without_source,
)


def cmdstanpy() -> Any:
    """The module cmdstanpy. Raises `ToolchainError` if it is not installed."""
    try:
        import cmdstanpy as module
    except ImportError:
        raise ToolchainError("cmdstanpy is not installed", "the extra 'stan'", install("cmdstanpy")) from None
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


@dataclass(frozen=True)
class CmdStan:
    """The user's CmdStan. Its makefile compiles copies of programs in the cache, with chains in threads."""

    folder: Path
    compiles: bool = True
    name: str = "cmdstan"

    @property
    def description(self) -> str:
        return f"CmdStan {self.version} at {self.folder}"

    @property
    def identity(self) -> str:
        local = self.folder / "make" / "local"
        return "\n".join(
            (str(self.folder), self.version, local.read_text() if local.exists() else "", sha256(self._guard()))
        )

    @property
    def version(self) -> str:
        stated = re.search(r"^CMDSTAN_VERSION *:= *(\S+)", (self.folder / "makefile").read_text(), re.MULTILINE)
        return stated[1] if stated else "unknown"

    @property
    def stanc(self) -> Path:
        return self.folder / "bin" / "stanc"

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        try:
            with turn():
                model = cmdstanpy().compile_stan_file(
                    source,
                    force=True,
                    stanc_options={"include-paths": [str(include)]},
                    cpp_options={"STAN_THREADS": "TRUE"},
                    user_header=str(self._guard()),
                )
        except (ValueError, RuntimeError) as error:
            raise ProgramError(
                source.name, tail(without_source(str(error))), "see CmdStan's message; `dpdist stan doctor`"
            ) from None
        return Path(model)

    @staticmethod
    def _guard() -> Path:
        return shipped_folder() / "driver" / "guard.hpp"

"""The toolchain `cmdstan`: builds Stan programs with a CmdStan that the user has installed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpdist.core.errors import ProgramError
from dpdist.core.files import sha256
from dpdist.sampling.building import (
    tail,
    without_source,
)
from dpdist.sampling.cache import turn
from dpdist.sampling.cmdstan import cmdstanpy
from dpdist.sampling.programs import shipped_folder


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
        found = re.search(r"^CMDSTAN_VERSION *:= *(\S+)", (self.folder / "makefile").read_text(), re.MULTILINE)
        return found[1] if found else "unknown"

    @property
    def stanc(self) -> Path:
        return self.folder / "bin" / "stanc"

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        try:
            with turn():
                made = cmdstanpy().compile_stan_file(
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
        return Path(made)

    @staticmethod
    def _guard() -> Path:
        return shipped_folder() / "driver" / "guard.hpp"

"""The plain instruction set: an environment in which every x86-64 processor computes the same bytes.

python tests/golden/plain.py ARGUMENT …     run Python there: `plain.py -m pytest tests/golden` compares bytes, too

Kernels of both copies of OpenBLAS, their thread and the cache size that they block for; NumPy's and Arrow's vector loops;
Numba's target; glibc's variants of exp and log. Recorded releases are made here, and their bytes are compared here alone.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence

import numpy as np

_ENVIRONMENT = {
    "OPENBLAS_CORETYPE": "Prescott",
    "OPENBLAS_L2_SIZE": "512",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_USER_SIMD_LEVEL": "NONE",
    "NUMBA_CPU_NAME": "x86-64",
    "NUMBA_CPU_FEATURES": "",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F",
}
_DISABLED = "NPY_DISABLE_CPU_FEATURES"


def in_force() -> bool:
    """Whether this process was started under the plain instruction set."""
    return not _vector_sets() and all(os.environ.get(name) == value for name, value in _ENVIRONMENT.items())


def rerun(arguments: Sequence[str]) -> None:
    """Replace this process by Python with these arguments under the plain instruction set."""
    if platform.machine() not in ("x86_64", "AMD64"):
        sys.exit(f"releases are recorded on x86-64, and this is {platform.machine()}")
    disabled = " ".join([*os.environ.get(_DISABLED, "").split(), *_vector_sets()])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "NUMBA_CPU"))}
    os.execve(sys.executable, [sys.executable, *arguments], environment | _ENVIRONMENT | {_DISABLED: disabled})


def _vector_sets() -> list[str]:
    """Instruction sets beyond the plain one that NumPy uses in this process."""
    found: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[call-overload]
    return found


if __name__ == "__main__":
    rerun(sys.argv[1:])

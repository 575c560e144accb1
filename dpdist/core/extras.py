"""For all who import an optional library: which extra of the install brings it, and the error without it."""

from __future__ import annotations

from importlib.util import find_spec

from dpdist.core.errors import MissingExtra

EXTRAS = {
    "numba": "compiled",
    "pyreadstat": "formats",
    "xarray": "posterior",
    "psycopg": "postgres",
    "pysdmx": "sdmx",
    "arviz": "stan",
    "cmdstanpy": "stan",
    "httpstan": "stan",
    "platformdirs": "stan",
    "obstore": "stores",
    "matplotlib": "studies",
    "pytest": "testing",
    "opentelemetry": "tracing",
}
"""The extra of dpdist that brings a module."""


def install(module: str) -> str:
    """The command that brings a module."""
    return f"pip install 'dpdist[{EXTRAS[module]}]'"


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(module: str, purpose: str) -> None:
    """Raises `MissingExtra` if a module that `purpose` needs is not installed."""
    if not installed(module):
        raise MissingExtra(f"{purpose} needs {module}, which is not installed", install(module))

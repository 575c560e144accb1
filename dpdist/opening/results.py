"""A run's results: its release, and for the custodian evaluations, posterior draws and log likelihoods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpdist.core.errors import WorkspaceError, require
from dpdist.core.parquet import ParquetTables
from dpdist.core.public_files import MANIFEST
from dpdist.opening.verifying import public_of, refuse_unverified
from dpdist.publish.opened import Release
from dpdist.storage import arrays
from dpdist.storage.objects import is_url
from dpdist.storage.workspace import MADE_AGAIN, Workspace

if TYPE_CHECKING:
    import xarray as xr

NO_RELEASE = "no release: there is no manifest.json in it"
HELD = "its release is held, and nobody has approved it"
APPROVE = (
    "read `dpdist report --confidential` of the workspace, then publish the release with `dpdist approve`, or leave it held"
)
RUN_FIRST = "name the workspace of a finished run, or its public folder"
NO_EVALUATION = "no evaluation"
AUDITED = "run the same `dpdist audit` command again: it makes the file again"


def is_held(workspace: Path) -> bool:
    """True if the workspace has no published release, but one that is held."""
    return not (public_of(workspace) / MANIFEST).is_file() and (workspace / "held" / MANIFEST).is_file()


def open_release(place: str | Path) -> Release:
    """Opens a finished release, after checking its files against its manifest.

    Parameters
    ----------
    place : a workspace or its public folder, as a path or as a URL of an object store.

    Returns
    -------
    The release, with `tables`, `synthetic(k)`, `combine(…)` and `statement`. As a path it is its public folder.

    Raises
    ------
    WorkspaceError : there is no release, or a file of it was changed.

    Example
    -------
    >>> release = dpdist.open_release("doctorates-2017")
    >>> release.statement["dataset"], len(release.synthetic(1))
    ('doctorates', 400)
    """
    if is_url(place):
        url = str(place).rstrip("/").removesuffix("/public")
        release = Release(f"{url}/public", _LocalCopy(url))
        release.folder  # noqa: B018 - its files come here, and are verified
        return release
    public = public_of(Path(place)).absolute()
    if not (public / MANIFEST).is_file():
        raise WorkspaceError(str(place), *((HELD, APPROVE) if is_held(Path(place)) else (NO_RELEASE, RUN_FIRST)))
    refuse_unverified(public)
    return Release(str(public), lambda: public)


def release_in(space: Workspace) -> Release:
    """Opens the release that a run has just published or held."""
    if space.store.shared:
        return Release(str(place := space.newest), lambda: place)
    return Release(space.address(space.newest), _LocalCopy(space.place, space.newest.name))


class _LocalCopy:
    """Copies the public folder from an object store to this machine. The copy lasts as long as this object."""

    def __init__(self, url: str, name: str = "public"):
        self._url, self._name = url, name

    def __call__(self) -> Path:
        self._space = Workspace.of_place(self._url, reading=True)
        public = self._space.root / self._name
        self._space.store.download_folder(public)
        if not (public / MANIFEST).is_file():
            raise WorkspaceError(self._url, NO_RELEASE, RUN_FIRST)
        try:
            refuse_unverified(public)
        except WorkspaceError as error:  # nobody may repair the copied folder
            raise WorkspaceError(self._url, error.fault, error.remedy, error.exit_code) from None
        return public


def open_evaluation(workspace: str | Path) -> ParquetTables:
    """Opens the evaluations of all published tables: **confidential**, because they contain direct estimates.

    Parameters
    ----------
    workspace : the workspace of a finished run.

    Returns
    -------
    Data frames by the name of a table or of an audit. Each is read when asked for.

    Raises
    ------
    WorkspaceError : there is no evaluation.

    Example
    -------
    >>> "direct" in dpdist.open_evaluation("doctorates-2017")["salaries"].columns
    True
    """
    space = Workspace.of_place(workspace, reading=True)
    evaluations = Evaluations(space)
    if not evaluations:
        raise WorkspaceError(space.place, NO_EVALUATION, MADE_AGAIN)
    return evaluations


class Evaluations(ParquetTables):
    """The confidential evaluations of a run; empty if there are none. A damaged file raises `WorkspaceError`."""

    def __init__(self, space: Workspace):
        space.store.download_folder(space.evaluation)
        super().__init__(space.evaluation, "confidential evaluations")
        self._space = space

    def path(self, name: str) -> Path:
        path = super().path(name)
        self._space.refuse_changed(path, AUDITED if name.startswith("audit-") else MADE_AGAIN)
        return path


def open_log_lik(workspace: str | Path) -> xr.Dataset:
    """Opens log_lik.zarr of a run: **confidential**. Coordinates are loaded, the log likelihoods are read when used.

    Strata are padded to whole chunks. Padding has NaN as values and −1 as `record`.

    Parameters
    ----------
    workspace : the workspace of a finished run that stored log likelihoods.

    Returns
    -------
    `log_lik` (chain, draw, record), natural logarithms; `offset` and `length` (stratum) give a stratum's place in it.

    Raises
    ------
    WorkspaceError : the run stored no log likelihoods.

    Example
    -------
    >>> dpdist.open_log_lik("doctorates-2017")["log_lik"].dims
    ('chain', 'draw', 'record')
    """
    space = Workspace.of_place(workspace, reading=True)
    if not space.store.names(space.log_lik):
        remedy = "run the job, with record: {log_lik: always}"
        raise WorkspaceError(str(workspace), "it has no log-likelihood tensor", remedy)
    return _load(space, space.log_lik, "offset", "length")


def open_posterior(workspace: str | Path) -> xr.Dataset:
    """Opens posterior.zarr of a run, the draws of its last fit, which are read when used: **confidential**.

    There is no padding. A stratum that was not fitted separately is NaN.

    Parameters
    ----------
    workspace : the workspace of a finished run whose mechanism samples a posterior.

    Returns
    -------
    All parameters of the model, (chain, draw, stratum, and the parameter's dimensions).

    Raises
    ------
    WorkspaceError : the run sampled no posterior.

    Example
    -------
    >>> dpdist.open_posterior("doctorates-2017").sizes["draw"]
    100
    """
    space = Workspace.of_place(workspace, reading=True)
    if not space.store.names(space.posterior):
        remedy = "open the workspace of a mechanism that samples one, such as weighted"
        raise WorkspaceError(str(workspace), "it has no posterior", remedy)
    return _load(space, space.posterior, group=arrays.GROUPS["final"])


def _load(space: Workspace, path: Path, *names: str, group: str | None = None) -> xr.Dataset:
    """Opens a store, or a group of it, and loads its coordinates and the named arrays."""
    require("xarray", "a lazy dataset of draws")
    import xarray as xr

    store: xr.Dataset = xr.open_zarr(arrays.source(path, space.store), group=group, consolidated=False)
    return store.assign_coords({name: store[name].load() for name in (*store.coords, *names)})

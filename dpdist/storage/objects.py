"""An object store: whole objects through obstore, some put-if-absent; a lease; and a workspace there, with local copies.

The library retries by itself. Its messages may quote credentials in requests or answers, so dpdist's own messages name
cause and remedy.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser, Error
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from dpdist.core.errors import WorkspaceError, require
from dpdist.core.files import Scratch, replaced, sha256
from dpdist.core.public_files import MANIFEST
from dpdist.storage.store import Store, read_mark

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import S3Credential

# An object is complete or does not exist. The files of a unit of work are stored one by one; then its completion record
# is stored. Noise, key and completion records are stored only if absent, so that one of several writers wins. Files that
# this process no longer needs are removed from its scratch folder.
T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Number of requests at a time. A request takes long and needs little work."""
PAGE = 1000
"""Largest number of names in an answer to a list request."""
LISTED = 10
"""A folder is listed if it has at most this many names for each name that is looked up.

An answer of `PAGE` names takes as long as about ten other answers.
"""
SETTLINGS = 6
"""Number of conditional puts in a row that may be refused although there is no object to fetch."""


class Bucket(Store):
    """One process's view of a workspace in an object store."""

    shared = False

    def __init__(self, url: str, reading: bool = False) -> None:
        """Opens the bucket. With `reading`, nothing is written, and failures are reported after seconds."""
        self.objects, self._scratch = Objects(url, reading, reading), Scratch()
        for name in ("records", "marks", "evaluation"):
            (self.root / "confidential" / name).mkdir(parents=True)
        self._lease: Lease | None = None

    @property
    def url(self) -> str:
        return self.objects.url

    @property
    def root(self) -> Path:
        return self._scratch.folder

    @property
    def view(self) -> str:
        return f"-{self.root.parent.name}"

    def close(self) -> None:
        self._scratch.remove()

    def download(self, path: Path, anew: bool = False) -> bool:
        return (path.exists() and not anew) or self.objects.fetch(self._name(path), path)

    def download_all(self, paths: Iterable[Path]) -> None:
        _each(self.download, paths)

    def download_folder(self, folder: Path) -> None:
        _each(lambda name: self.objects.fetch(name, self.root / name), self.objects.below(self._name(folder)))

    def download_files(self, files: Mapping[str, str], root: Path) -> None:
        _each(lambda entry: self._download_checked(root / entry[0], entry[1]), files.items())

    def download_finished(self, completions: Iterable[Path], root: Path, matches: Callable[[str], bool]) -> None:
        def download_unit(mark: Path) -> None:
            if not self.download(mark, anew=True):
                return
            try:
                for name, digest in (read_mark(mark) or {}).items():
                    if matches(name):
                        self._download_checked(root / name, digest)
            except _Incomplete:
                self.objects.delete([self._name(mark)])
                raise

        _each(download_unit, completions)

    def upload(self, paths: Iterable[Path]) -> None:
        self._check()
        _each(lambda path: self.objects.put(self._name(path), path), paths)

    def put_if_absent(self, path: Path) -> bool:
        """Puts a file unless the object exists.

        A put may be refused because of another writer's put that later fails; it is then repeated.
        """
        content, name = path.read_bytes(), self._name(path)
        for attempt in range(SETTLINGS):
            if self.objects.create(name, content) is not None:
                return True
            if self.download(path, anew=True):
                return path.read_bytes() == content
            time.sleep(0.1 * 2**attempt)
        raise WorkspaceError(self.url, f"{name} can neither be written nor read", f"look at the store's log; {_AGAIN}")

    def discard(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def delete(self, paths: Iterable[Path]) -> None:
        self._check()
        for name in map(self._name, paths):
            self.objects.delete([name, *self.objects.below(name)])

    def names(self, folder: Path) -> set[str]:
        return self.objects.inside(self._name(folder))

    def intact(self, files: Mapping[str, str], root: Path) -> bool:
        return all(_each(lambda name: self.objects.exists(self._name(root / name)), files))

    def finished(self, completions: Iterable[Path], root: Path) -> set[Path]:
        """The units, of the given ones, that are finished.

        Their objects only need to exist; content is compared when they are fetched. The number of requests grows with the
        number of units asked for, not with the number in the store.
        """
        by_name = {self._name(mark): mark for mark in completions}
        if len(by_name) >= AT_ONCE:
            there = self.objects.between(min(by_name), max(by_name), min(len(by_name), PAGE))
            by_name = {name: mark for name, mark in by_name.items() if name in there}
        marks = list(by_name.values())
        here = _each(lambda mark: self.download(mark, anew=True), marks)
        present = [mark for mark, is_here in zip(marks, here, strict=True) if is_here]
        units = {mark: files for mark in present if (files := read_mark(mark)) is not None}
        objects_found = self._kept(
            {self._name(root / name) for files in units.values() for name in files}, self._name(root)
        )
        return {mark for mark, files in units.items() if all(self._name(root / name) in objects_found for name in files)}

    def _kept(self, names: set[str], folder: str) -> set[str]:
        """The given names that exist in a folder.

        It lists the folder, or asks for each name if the folder has many other objects.
        """
        limit = LISTED * len(names) if len(names) >= AT_ONCE else 0
        listed = set(islice(self.objects.below(folder, min(limit, PAGE)), limit)) if limit else set[str]()
        if 0 < len(listed) < limit:
            return names & listed
        unlisted = sorted(names - listed)
        return names & listed | {
            name for name, there in zip(unlisted, _each(self.objects.exists, unlisted), strict=True) if there
        }

    @contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        with leased(self.objects, LEASE) as self._lease:
            try:
                yield
            finally:
                self._lease = None

    def publish(self, public: Path) -> None:
        """Publishes the files of the public folder, the manifest last.

        A reader without a manifest sees no release, so nobody can mix two releases.
        """
        self._check()
        files = [path for path in public.rglob("*") if path.is_file()]
        manifest, old = public / MANIFEST, self.objects.get(self._name(public / MANIFEST))
        if old is not None and old.data != manifest.read_bytes():
            self.objects.delete([self._name(manifest)])
        self.upload(path for path in files if path != manifest)
        stale = set(self.objects.below(self._name(public))) - {self._name(path) for path in files}
        self.objects.delete(sorted(stale))
        self.upload([manifest])

    def _check(self) -> None:
        """Raises `WorkspaceError` if this process has lost its lease on the workspace."""
        if self._lease is not None:
            self._lease.check()

    def _download_checked(self, path: Path, digest: str) -> None:
        if path.is_file() and sha256(path) == digest:
            return
        if not (self.objects.fetch(self._name(path), path) and sha256(path) == digest):
            path.unlink(missing_ok=True)
            raise _Incomplete(
                self.url, f"{self._name(path)} is missing, or its checksum differs from that in its mark", _AGAIN
            )

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


_AGAIN = "repeat the `dpdist run` command that wrote it; or restore the version of the object with the checksum in the mark"


class _Incomplete(WorkspaceError):
    """An object differs from the one that its completion record names."""


def _each(act: Callable[[T], R], things: Iterable[T]) -> list[R]:
    listed = list(things)
    if len(listed) < 2:
        return [act(item) for item in listed]
    with ThreadPoolExecutor(min(AT_ONCE, len(listed))) as pool:
        return list(pool.map(act, listed))


SCHEMES = ("s3", "gs", "az")
FIRST_TRY = timedelta(seconds=10)
"""Longest time of a command's first request, retries included, so that a wrong address is noticed soon."""
_FRESH = timedelta(minutes=15)
"""Time after which credentials are read from their file again, because a mounted secret may be replaced."""
_DENIED = "access is denied: the credentials are unknown there, expired, or lack a right"
_NONE = "no credentials: there are none in the environment, and this machine has none of its own"
_REMEDIES = {
    _DENIED: "allow them reading, writing, deleting and listing under this prefix (s3:GetObject, PutObject, DeleteObject, "
    "ListBucket)",
    _NONE: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or mount a file and name it in AWS_SHARED_CREDENTIALS_FILE, "
    "or AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN",
}
_LOOK = "check the URL, AWS_ENDPOINT_URL, AWS_REGION, the network and the store"


def is_url(place: str | Path) -> bool:
    """True if the place is a URL. Raises `WorkspaceError` for a URL that is not of an object store."""
    text = str(place)
    if re.match(r"[a-z0-9+]+:/[^/]", text):
        raise WorkspaceError(text, "a URL in which a slash is missing", "give it as text, scheme://bucket/prefix", 2)
    if "://" not in text:
        return False
    address, remedy = text.rpartition("@")[2].partition("?")[0], "write s3://bucket/prefix, or the path of a folder"
    if "@" in text or "?" in text or "#" in text:
        fault = "the URL holds more than scheme, bucket and prefix"
        raise WorkspaceError(address, fault, f"{remedy}; credentials come from the environment or from mounted files", 2)
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise WorkspaceError(address, f"'{parts.scheme}' is none of {', '.join(SCHEMES)}", remedy, 2)
    prefix = parts.path.strip("/")
    if not parts.netloc or (prefix and {"", ".", ".."} & set(prefix.split("/"))):
        raise WorkspaceError(address, "no bucket, or an empty part in the prefix", remedy, 2)
    return True


class Tag(NamedTuple):
    """What distinguishes versions of an object."""

    e_tag: str | None
    version: str | None

    def match(self) -> UpdateVersion:
        version: UpdateVersion = {}
        if self.e_tag is not None:
            version["e_tag"] = self.e_tag
        if self.version is not None:
            version["version"] = self.version
        return version


class ListedObject(NamedTuple):
    data: bytes
    tag: Tag


class Objects:
    """The objects below a URL, by name.

    With `soon`, errors are raised after `FIRST_TRY` and not after the library's own time. A command that is only
    `reading` has nothing to resume, and its errors do not mention resuming.
    """

    def __init__(self, url: str, soon: bool = False, reading: bool = False) -> None:
        require("obstore", "a workspace in an object store")
        from obstore.store import from_url

        self.url, self._afterwards = url.rstrip("/"), "" if reading else "; the same command resumes"
        options: dict[str, Any] = {"retry_config": _retries(soon)}
        if authority := os.environ.get("AWS_CA_BUNDLE"):
            allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
            bundle = self._read(authority, "AWS_CA_BUNDLE").encode()
            options["client_options"] = {"root_certificate": bundle, "allow_http": allow_http}
        if self.url.startswith("s3:") and (file := os.environ.get("AWS_SHARED_CREDENTIALS_FILE")):
            self._credentials(file)
            options["credential_provider"] = lambda: self._credentials(file)
        with self._errors_named():
            self.store: Any = from_url(self.url, **options)

    def check(self) -> None:
        """Raises `WorkspaceError` if nothing can be listed here, for any reason."""
        with self._errors_named():
            next(iter(self.store.list(chunk_size=1)), None)

    def get(self, name: str) -> ListedObject | None:
        with self._errors_named():
            try:
                stored = self.store.get(name)
                return ListedObject(bytes(stored.bytes()), Tag(stored.meta["e_tag"], stored.meta["version"]))
            except FileNotFoundError:
                return None

    def fetch(self, name: str, path: Path) -> bool:
        """Writes an object to a file; False if there is none."""
        with self._errors_named():
            try:
                stored = self.store.get(name)
            except FileNotFoundError:
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path, durable=False) as temporary, temporary.open("xb") as handle:
                for chunk in stored.stream():
                    handle.write(chunk)
        return True

    def put(self, name: str, data: bytes | Path) -> None:
        with self._errors_named():
            self.store.put(name, data)

    def create(self, name: str, data: bytes) -> Tag | None:
        """Puts an object if there is none; returns None if there is one."""
        return self._conditional(name, data, "create")

    def update(self, name: str, data: bytes, tag: Tag) -> Tag | None:
        """Replaces this version of an object; returns None if the object has changed or is gone."""
        return self._conditional(name, data, tag.match())

    def _conditional(self, name: str, data: bytes, mode: PutMode) -> Tag | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._errors_named():
            try:
                result = self.store.put(name, data, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                return None
            except FileNotFoundError:
                if mode == "create":
                    raise
                return None
        return Tag(result["e_tag"], result["version"])

    def exists(self, name: str) -> bool:
        with self._errors_named():
            try:
                self.store.head(name)
            except FileNotFoundError:
                return False
            return True

    def below(self, folder: str, at_once: int = 1000) -> Iterator[str]:
        """Yields the names of all objects in a folder and its subfolders. A request returns up to `at_once` names."""
        with self._errors_named():
            for batch in self.store.list(folder, chunk_size=at_once):
                yield from (item["path"] for item in batch)

    def between(self, first: str, last: str, at_most: int) -> set[str]:
        """Names of a folder's objects from `first` to `last`, both included, in the order of their characters.

        `at_most` is the number of names to expect, and the size of a request. The list is read from the first name on, and
        no further than the last.
        """
        inside: set[str] = set()
        with self._errors_named():
            for batch in self.store.list(first.rpartition("/")[0], offset=first[:-1], chunk_size=at_most):
                names = [item["path"] for item in batch]
                inside.update(name for name in names if first <= name <= last)
                if names and names[-1] >= last:
                    break
        return inside

    def inside(self, folder: str) -> set[str]:
        """Names of a folder's files and subfolders."""
        with self._errors_named():
            listed = self.store.list_with_delimiter(folder)
        return {
            name.rpartition("/")[2] for name in (*(item["path"] for item in listed["objects"]), *listed["common_prefixes"])
        }

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects. It is no error if one does not exist."""
        if names:
            with self._errors_named():
                try:
                    self.store.delete(list(names))
                except FileNotFoundError:
                    for name in names if len(names) > 1 else ():
                        self.delete([name])

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except FileNotFoundError:
            raise self._refused("there is no such bucket") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise self._refused(_DENIED) from None
        except BaseError as error:
            raise self._refused(_cause(str(error))) from None

    def _refused(self, what: str) -> WorkspaceError:
        return WorkspaceError(self.url, what, _REMEDIES.get(what, _LOOK) + self._afterwards)

    def _credentials(self, file: str) -> S3Credential:
        profiles, profile = ConfigParser(interpolation=None), os.environ.get("AWS_PROFILE", "default")
        try:
            profiles.read_string(self._read(file, "AWS_SHARED_CREDENTIALS_FILE"))
            entries = profiles[profile]
            key, secret, token = (
                entries["aws_access_key_id"],
                entries["aws_secret_access_key"],
                entries.get("aws_session_token"),
            )
        except (Error, KeyError):
            fault = f"{file} has no complete profile [{profile}]"
            remedy = "write aws_access_key_id and aws_secret_access_key there, or set AWS_PROFILE"
            raise WorkspaceError(self.url, fault, remedy, 2) from None
        expires = datetime.now(UTC) + _FRESH
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": expires}

    def _read(self, file: str, variable: str) -> str:
        try:
            return Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError):
            fault = f"{file}, which {variable} names, cannot be read"
            raise WorkspaceError(self.url, fault, "mount it, or name another file", 2) from None


def _retries(soon: bool) -> Any:
    limit = os.environ.get("AWS_MAX_ATTEMPTS", "")
    attempts = {"max_retries": max(0, int(limit) - 1)} if limit.isdigit() else {}
    return {**({"retry_timeout": FIRST_TRY} if soon else {}), **attempts} or None


def _cause(text: str) -> str:
    causes = {
        **dict.fromkeys(("/latest/api/token", "/latest/meta-data"), _NONE),  # where a cloud machine asks for credentials
        "403 Forbidden": _DENIED,
        "401 Unauthorized": _DENIED,
        "NoSuchBucket": "there is no such bucket",
        "BadScheme": "its endpoint does not use https, and AWS_ALLOW_HTTP is not true",
        "NotImplemented": (
            "the store does not support conditional writes (If-None-Match, If-Match), which a workspace needs"
        ),
        "301 Moved": "the bucket lies in another region",
        "AuthorizationHeaderMalformed": "the bucket lies in another region",
        "error sending request": "the store does not answer",
        "timed out": "the store does not answer",
    }
    return next((cause for word, cause in causes.items() if word in text), "the store failed")


# Clocks are not compared: a process that finds a lease watches whether it is renewed. The lease only saves double work.
# That two runs cannot mix their releases follows from conditional puts of key, identity, noise and completion records.
LEASE = "confidential/lease.json"
BEAT = 3.0
"""Seconds between two renewals."""
SILENCE = 15.0
"""Seconds without renewal after which a lease is void."""


class Lease:
    """A lease that this process holds until it releases it or another run takes it over."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects, self._name, self._token, self._beats = objects, name, uuid4().hex, 0
        self._ended, self._lost = threading.Event(), threading.Event()
        self._renewed = time.monotonic()
        self._tag = self._taken()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Raises `WorkspaceError` if the lease is lost. It asks the store if the last renewal is long ago."""
        if time.monotonic() - self._renewed > SILENCE and self._mine() is None:
            self._lost.set()
        if self._lost.is_set():
            fault = f"another run has taken it over, or somebody has removed {self._name}"
            raise WorkspaceError(self._objects.url, fault, "let one run work on it; the same command resumes")

    def release(self) -> None:
        self._ended.set()
        self._renewing.join()
        with suppress(WorkspaceError):
            if not self._lost.is_set() and self._mine() is not None:
                self._objects.delete([self._name])

    def _taken(self) -> Tag:
        lease = self._objects.get(self._name)
        tag = self._objects.create(self._name, self._text()) if lease is None else None
        if tag is not None and self._objects.create(self._name, self._text()) is not None:
            unsafe = "the store ignores conditional writes (If-None-Match): two writers could mix what they write"
            raise WorkspaceError(self._objects.url, unsafe, "use a store that supports them, or a shared folder", 2)
        if tag is None and (tag := self._mine()) is None:
            old, content = self._silent(), self._text()
            tag = self._objects.update(self._name, content, old) if old else self._objects.create(self._name, content)
            tag = tag or self._mine()
        if tag is None:
            raise self._held({})
        return tag

    def _silent(self) -> Tag | None:
        """The tag of a lease that was not renewed while this process watched; None if the lease is gone.

        Raises `WorkspaceError` if it was renewed.
        """
        tag: Tag | None = None
        deadline = time.monotonic() + SILENCE
        while time.monotonic() < deadline:
            lease = self._objects.get(self._name)
            if lease is None:
                return None
            if tag is not None and lease.tag != tag:
                raise self._held(_parse(lease.data))
            tag = lease.tag
            time.sleep(BEAT / 3)
        return tag

    def _held(self, lease: dict[str, Any]) -> WorkspaceError:
        holder = f" (process {lease['process']} on {lease['host']})" if {"process", "host"} <= lease.keys() else ""
        remedy = f"wait for that run to end, or end it: {SILENCE:g} s later its lease is free; to clear it at once, delete "
        return WorkspaceError(self._objects.url, f"another run is using it{holder}", remedy + self._name)

    def _renew(self) -> None:
        while not self._ended.wait(BEAT):
            self._beats += 1
            with suppress(WorkspaceError):  # if the store cannot be reached, a later call checks again
                sent = time.monotonic()
                tag = self._objects.update(self._name, self._text(), self._tag) or self._mine()
                if tag is None:
                    return self._lost.set()
                self._tag, self._renewed = tag, sent
        return None

    def _mine(self) -> Tag | None:
        """The tag of the lease if this process holds it, else None.

        A repeated put may have been refused only because the first one succeeded, so the lease itself is read.
        """
        lease = self._objects.get(self._name)
        return lease.tag if lease is not None and _parse(lease.data).get("token") == self._token else None

    def _text(self) -> bytes:
        content = {"host": socket.gethostname(), "process": os.getpid(), "token": self._token, "beats": self._beats}
        return json.dumps(content).encode()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def leased(objects: Objects, name: str = LEASE) -> Iterator[Lease]:
    """Holds a lease during the block. Raises `WorkspaceError` if another run holds it."""
    lease = Lease(objects, name)
    try:
        yield lease
    finally:
        lease.release()

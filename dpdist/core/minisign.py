"""Signatures of releases in minisign's formats.

minisign (https://jedisct1.github.io/minisign/) can check these Ed25519 signatures too. A key is the letters `Ed`, a number
of 8 bytes, and 32 bytes. A signature is the letters `ED`, the key's number, and 64 bytes that sign the BLAKE2b-512 hash of
the file. Another 64 bytes sign these 64 and a comment.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdist.core.errors import RemediedError
from dpdist.core.public_files import MANIFEST, SIGNATURE, DamagedFile, printable, regular

PLAIN, HASHED = b"Ed", b"ED"
"""Two algorithms: the signature is over the file itself (earlier versions of minisign), or over its BLAKE2b-512 hash."""
_NO_PASSWORD, _CHECKSUM, _SALT = b"\0\0", b"B2", bytes(48)
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "


class SignatureError(RemediedError):
    """A key or a signature that cannot be read, or a signature of another file."""


@dataclass(frozen=True)
class PublicKey:
    """A public key, which checks signatures."""

    number: bytes
    key: bytes

    @property
    def name(self) -> str:
        """The key's number as minisign prints it."""
        return self.number[::-1].hex().upper()

    @property
    def text(self) -> str:
        return f"{_UNTRUSTED}minisign public key {self.name}\n{self.line}\n"

    @property
    def line(self) -> str:
        """The key's 56 characters, without a comment."""
        return base64.b64encode(PLAIN + self.number + self.key).decode()

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Reads a key from the text of a file, or from its line of 56 characters. Raises `SignatureError`."""
        lines = [line for line in text.splitlines() if line.strip()]
        raw = _decode(lines[-1].strip() if lines else "", 42)
        if raw is None or raw[:2] != PLAIN:
            raise SignatureError("not a minisign public key", "give the .pub file that `dpdist keygen` or minisign wrote")
        return cls(raw[2:10], raw[10:])

    @classmethod
    def named(cls, name: str, folder: Path = Path()) -> PublicKey:
        """Reads a key from the file of this name in the folder, or takes the name as the key's text.

        Raises `SignatureError`.
        """
        path = folder / name
        try:
            return cls.parse(path.read_text(encoding="utf-8") if path.is_file() else name)
        except (OSError, ValueError, SignatureError):
            raise SignatureError(f"{name} is not a public key", "give the file of a public key") from None

    def check(self, data: bytes, signature: str) -> str:
        """Returns the signed comment. Raises `SignatureError` unless the signature is of `data` and by this key."""
        raw, comment, global_signature = _parse(signature)
        if raw[2:10] != self.number:
            fault = f"signed by another key, {raw[2:10][::-1].hex().upper()}, and not by {self.name}"
            raise SignatureError(fault, "use the public key of the person who should have signed")
        signed = data if raw[:2] == PLAIN else _digest(data)
        try:
            public = Ed25519PublicKey.from_public_bytes(self.key)
            public.verify(raw[10:], signed)
            public.verify(global_signature, raw[10:] + comment.encode())
        except (InvalidSignature, ValueError):
            raise SignatureError(
                "the signature belongs to another file", "do not trust the folder: ask who signed it"
            ) from None
        return comment


@dataclass(frozen=True, repr=False)
class SecretKey:
    """A secret key, which makes signatures."""

    number: bytes
    seed: bytes

    @classmethod
    def from_os(cls) -> SecretKey:
        return cls(os.urandom(8), os.urandom(32))

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.number, self._secret_key.public_key().public_bytes_raw())

    @property
    def text(self) -> str:
        """The key as text without a password. Only the file's mode protects it."""
        pair = self.seed + self.public.key
        checksum = hashlib.blake2b(PLAIN + self.number + pair, digest_size=32).digest()
        raw = PLAIN + _NO_PASSWORD + _CHECKSUM + _SALT + self.number + pair + checksum
        return f"{_UNTRUSTED}minisign unencrypted secret key\n{base64.b64encode(raw).decode()}\n"

    @classmethod
    def read(cls, path: Path) -> SecretKey:
        """Reads a key. Raises `SignatureError` for invalid text, or for a key with a password."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise SignatureError(f"{path}: cannot be read ({type(error).__name__})", "check the path") from None
        raw = _decode(lines[1].strip() if len(lines) > 1 else "", 158)
        if raw is None or raw[:2] != PLAIN:
            raise SignatureError(f"{path} is not a minisign secret key", "make one: dpdist keygen FILE")
        if raw[2:4] != _NO_PASSWORD:
            raise SignatureError(
                f"{path} is protected by a password", "sign with minisign, or remove the password: minisign -C -W"
            )
        return cls(raw[54:62], raw[62:94])

    def sign(self, data: bytes, comment: str) -> str:
        """The text of a signature's file."""
        signature = self._secret_key.sign(_digest(data))
        global_signature = self._secret_key.sign(signature + comment.encode())
        lines = [base64.b64encode(part).decode() for part in (HASHED + self.number + signature, global_signature)]
        return f"{_UNTRUSTED}signature from dpdist\n{lines[0]}\n{_TRUSTED}{comment}\n{lines[1]}\n"

    @property
    def _secret_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


def unsigned(folder: Path, key: PublicKey) -> str | None:
    """The reason why a release's manifest is not signed by the key; None if it is."""
    try:
        text = regular(folder, SIGNATURE).read_text(encoding="utf-8")
        key.check(regular(folder, MANIFEST).read_bytes(), text)
    except DamagedFile as error:
        return error.fault
    except SignatureError as error:
        return printable(error.fault)
    except ValueError:
        return "no text"
    return None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


def _parse(signature: str) -> tuple[bytes, str, bytes]:
    lines = signature.split("\n")
    if len(lines) >= 4 and lines[0].startswith(_UNTRUSTED) and lines[2].startswith(_TRUSTED):
        raw, global_signature = _decode(lines[1], 74), _decode(lines[3], 64)
        if raw is not None and global_signature is not None and raw[:2] in (PLAIN, HASHED):
            return raw, lines[2].removeprefix(_TRUSTED), global_signature
    raise SignatureError("not a minisign signature", "sign the folder again, or restore it from a copy")


def _decode(text: str, size: int) -> bytes | None:
    """Decodes base64 strictly: spare bits must be 0, so that every sequence of bytes has one text only."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == size and base64.b64encode(raw).decode() == text else None

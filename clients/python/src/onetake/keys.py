"""Keys: one per intent, and those that are made from a derived key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from dataclasses import dataclass

from .clock import Clock, SystemClock
from .errors import InvalidKey


@dataclass(frozen=True)
class Intent:
    """One action of a user. Its key is the same in every attempt."""

    key: str

    def __post_init__(self) -> None:
        if not isinstance(self.key, str):
            raise InvalidKey("a key must be a string")
        if not 16 <= len(self.key) <= 255:
            raise InvalidKey(f"a key has 16 to 255 characters, this one has {len(self.key)}")
        if not re.fullmatch(r"[!-~]+", self.key):
            raise InvalidKey("a key consists of visible ASCII characters, without spaces")
        if '"' in self.key or "\\" in self.key:
            raise InvalidKey("a key must not contain quotes or backslashes")

    @classmethod
    def new(cls, clock: Clock | None = None) -> Intent:
        """Make an intent with a new key (UUIDv7). Call it when the user acts."""
        time = int((clock or SystemClock()).now() * 1000) % (1 << 48)
        return cls(_uuid(time.to_bytes(6, "big") + secrets.token_bytes(10), 0x70))

    @classmethod
    def from_ids(cls, first: str, *others: str) -> Intent:
        """Make an intent from business ids. The same ids give the same key on every machine.

        Warning: include everything that makes the action another one, such as a number that counts
        the user's tries. A second action with the same ids is answered with the outcome of the
        first.
        """
        message = _framed(b"onetake intent v1", (first, *others))
        return cls(_uuid(hashlib.sha256(message).digest(), 0x80))

    @property
    def headers(self) -> dict[str, str]:
        """The header that carries the key."""
        return {"Idempotency-Key": self.key}


def step_key(derived_key: str, name: str) -> str:
    """Return the key for one of the calls that an operation makes under its derived key."""
    return _mac(derived_key, _framed(b"onetake step v1", (name,)))


def compensation_key(key: str) -> str:
    """Return the key for the call that undoes the call under `key`."""
    return _mac(key, b"onetake compensation v1")


def _mac(key: str, message: bytes) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", key):
        raise InvalidKey("a derived key is a UUID, such as 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90")
    return _uuid(hmac.digest(uuid.UUID(key).bytes, message, "sha256"), 0x40)


def _framed(label: bytes, parts: tuple[str, ...]) -> bytes:
    encoded = [part.encode() for part in parts]
    return label + b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _uuid(digest: bytes, version: int) -> str:
    marked = bytearray(digest[:16])
    marked[6] = marked[6] & 0x0F | version
    marked[8] = marked[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(marked)))

"""What `admin install` has put on the machine: so that it updates and removes its own files and no others."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from explsched.errors import ExplschedError

PATH = Path("/var/lib/explsched/installed.json")


class InstallationError(ExplschedError):
    """A file cannot be read, written or removed; the message names it."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files by their path, with the SHA-256 of what was written; and the directories that were made for them."""

    files: dict[str, str] = {}
    directories: tuple[str, ...] = ()


def digest(data: bytes) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def below(root: Path, path: Path) -> Path:
    """Where the machine's `path` is if the machine's root directory is `root`."""
    return root / path.relative_to("/")


def read(root: Path) -> Record:
    """The record, empty if there is none. Raises `InstallationError` for one that is damaged."""
    path = below(root, PATH)
    data = content(path)
    try:
        return Record() if data is None else msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError as error:
        raise InstallationError(f"{path}: {error}") from error


def content(path: Path) -> bytes | None:
    """What a file holds; None if there is none. Raises `InstallationError`."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InstallationError(f"{path}: cannot be read: {error.strerror}") from error

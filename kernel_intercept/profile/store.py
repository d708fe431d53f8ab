"""The profile file of a user: read, and changed under a lock by one atomic replacement."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from explsched.atomic_file import replace_file_durably
from kernel_intercept.profile import format as text_format
from kernel_intercept.profile.errors import ProfileError
from kernel_intercept.profile.format import Parsed
from kernel_intercept.profile.model import KernelProfile

FILE_NAME = "kernels-v1.tsv"


def default_path() -> Path:
    """`$XDG_CACHE_HOME/explsched/kernels-v1.tsv`, where XDG_CACHE_HOME is ~/.cache unless set."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    base = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return base / "explsched" / FILE_NAME


def read(path: Path) -> Parsed:
    """The profiles of a file; a file that does not exist has none. Raises `ProfileError` if it cannot be read."""
    try:
        return text_format.parse(path.read_text(errors="replace"))
    except FileNotFoundError:
        return Parsed((), ())
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def read_strict(path: Path) -> tuple[KernelProfile, ...]:
    """As `read`, but every bad line is an error."""
    parsed = read(path)
    if parsed.faults:
        more = f" (and {len(parsed.faults) - 1} more)" if len(parsed.faults) > 1 else ""
        raise ProfileError(f"{path}: {parsed.faults[0]}{more}")
    return parsed.profiles


def update(path: Path, change: Callable[[tuple[KernelProfile, ...]], Iterable[KernelProfile]]) -> Parsed:
    """Replace the file's profiles by what `change` makes of them; returns what was there before.

    Lines that cannot be used are dropped. Readers see the old file or the new one, never a part. Raises `ProfileError`.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            before = read(path)
            replace_file_durably(path, text_format.render(change(before.profiles)), mode=0o600)
            return before
    except OSError as error:
        raise ProfileError(f"{error.filename or path}: {error.strerror}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An open-file-description lock on FILE.lock: the manager takes the same; the kernel releases it on any death.

    On a companion, since the file itself is replaced while the lock is held.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(f"{path}.lock", flags, 0o600)
    try:
        # struct flock of 64-bit Linux: type, whence, start, length 0 (the whole file), pid 0 (required for OFD locks).
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        yield
    finally:
        os.close(descriptor)

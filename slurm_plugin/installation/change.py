"""Writes and removes files, and keeps the record of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from slurm_plugin.installation import record
from slurm_plugin.installation.compare import Finding, State
from slurm_plugin.installation.record import InstallationError, Record

_DONE = {State.MISSING: "installed", State.OUTDATED: "updated", State.RIGHT: "unchanged", State.CHANGED: "kept"}


def install(findings: Iterable[Finding], root: Path) -> Iterator[str]:
    """Write what is missing or outdated; yields what was done, a line a file. Raises `InstallationError`.

    A file that is right without our having written it, such as one from a package, is not recorded: it is not ours.
    """
    before = record.read(root)
    files, directories = dict(before.files), list(before.directories)
    for finding in findings:
        path, data = finding.item.path, finding.item.text.encode()
        if finding.state in (State.MISSING, State.OUTDATED):
            directories += _write(root, path, data)
            files[str(path)] = record.digest(data)
            # At once: after an interruption what is there must still be known.
            directories += _write(root, record.PATH, msgspec.json.encode(Record(files, tuple(directories))))
        yield f"{_DONE[finding.state]}: {path}"
    if files != before.files:
        _write(root, record.PATH, msgspec.json.encode(Record(files, tuple(directories))))


def uninstall(root: Path) -> Iterator[str]:
    """Remove what `install` has written, except for what was changed since; yields what was done."""
    known = record.read(root)
    for name, written in known.files.items():
        path = record.below(root, Path(name))
        found = record.content(path)
        if found is None:
            yield f"gone already: {name}"
        elif record.digest(found) == written:
            _remove(path)
            yield f"removed: {name}"
        else:
            yield f"kept, changed since it was installed: {name}"
    if known.files:
        _remove(record.below(root, record.PATH))
    for name in sorted(known.directories, key=len, reverse=True):
        with contextlib.suppress(OSError):  # others have files there by now
            record.below(root, Path(name)).rmdir()


def _write(root: Path, path: Path, data: bytes) -> list[str]:
    """Write a file whole or not at all; returns the directories that had to be made."""
    target = record.below(root, path)
    made = [parent for parent in path.parents if not record.below(root, parent).exists()]
    partial = target.with_name(f".{target.name}.new")
    try:
        for parent in reversed(made):
            record.below(root, parent).mkdir(mode=0o755)
        partial.write_bytes(data)
        partial.chmod(0o644)
        partial.replace(target)
    except OSError as error:
        raise InstallationError(f"{target}: cannot be written: {error.strerror}") from error
    return [str(parent) for parent in made]


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise InstallationError(f"{path}: cannot be removed: {error.strerror}") from error

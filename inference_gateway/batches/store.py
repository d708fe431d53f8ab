"""The files and batches of each key, as files below the gateway's directory.

    OWNER/ID.json, OWNER/ID.data      a file: its record and its bytes; it exists once the record does
    OWNER/BATCH.json                  a batch; once created, only the worker changes it
    OWNER/BATCH.cancel                a request to cancel it
    OWNER/BATCH.output, .errors       what the worker has written so far, one line per request

An owner is the name of a key and has access to its own directory only. The names of files and batches are generated
here and increase with time; any other text is refused as unknown.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from explsched.atomic_file import replace_file_durably
from inference_gateway.dataplane.settings import BatchSettings
from inference_gateway.errors import GatewayError

_NAME = re.compile(r"(?:file-[0-9a-f]{28}(?:-output|-errors)?|batch_[0-9a-f]{28})")
_WITHOUT_KEY = "_"
"""The directory of clients without a key; no key has such a name."""

TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})


class FileRecord(msgspec.Struct, frozen=True):
    """A file as clients see it, in OpenAI's terms; `created_at` is in seconds since the epoch."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"


class LineFault(msgspec.Struct, frozen=True):
    """What is wrong with a line of a batch's input; lines count from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Faults(msgspec.Struct, frozen=True):
    """Why a batch was refused."""

    data: tuple[LineFault, ...]
    object: str = "list"


class Counts(msgspec.Struct, frozen=True):
    """The numbers of a batch's requests, by outcome."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True):
    """A batch as clients see it, except for `ends_as`: its status once its results have been published as files."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    object: str = "batch"
    errors: Faults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    metadata: dict[str, str] | None = None
    ends_as: str = ""

    @property
    def ended_at(self) -> int:
        """When it ended, since the epoch; 0 if it has not."""
        return max(self.completed_at or 0, self.failed_at or 0, self.expired_at or 0, self.cancelled_at or 0)

    def shown(self) -> dict[str, Any]:
        """The batch as JSON for clients."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        del found["ends_as"]
        return found


_Record = TypeVar("_Record", FileRecord, Batch)


class NotFoundError(GatewayError):
    """The key has no such file or batch."""


class NotNowError(GatewayError):
    """The request cannot be granted now: a limit is reached, a file is in use, or a value is not accepted."""


def _new_name(kind: str) -> str:
    """A new name, which increases with time and cannot be guessed."""
    return f"{kind}{time.time_ns():016x}{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True)
class Owned:
    """The files and batches of one key. All methods raise `OSError` if reading or writing fails."""

    directory: Path
    settings: BatchSettings

    @classmethod
    def of(cls, settings: BatchSettings, owner: str) -> Owned:
        """The files and batches of a key; an empty name stands for clients without a key."""
        return cls(settings.directory / (owner or _WITHOUT_KEY), settings)

    @property
    def owner(self) -> str:
        """The key's name."""
        return "" if self.directory.name == _WITHOUT_KEY else self.directory.name

    def path(self, name: str, kind: str) -> Path:
        """The path of a part of a file or batch. Raises `NotFoundError` for a name that was not generated here."""
        if not _NAME.fullmatch(name):
            raise NotFoundError(f"no such file or batch: {name[:80]!r}")
        return self.directory / f"{name}.{kind}"

    def file(self, name: str) -> FileRecord:
        """The record of a file. Raises `NotFoundError`."""
        return self._read(name, FileRecord)

    def batch(self, name: str) -> Batch:
        """A batch; its status is `cancelling` once a cancellation was requested. Raises `NotFoundError`."""
        found = self._read(name, Batch)
        cancel = self.path(name, "cancel")
        if found.status in TERMINAL or found.cancelling_at or not cancel.exists():
            return found
        return msgspec.structs.replace(found, status="cancelling", cancelling_at=int(cancel.stat().st_mtime))

    def files(self) -> list[FileRecord]:
        """All files, newest first."""
        return list(self._known(self._names("file-"), self.file))

    def batches(self) -> list[Batch]:
        """All batches, newest first."""
        return list(self._known(self._names("batch_"), self.batch))

    def unfinished(self, ended: set[str]) -> list[Batch]:
        """The unfinished batches, oldest first. Those in `ended` are skipped; newly ended ones are added to it."""
        there = self._names("batch_")
        ended.intersection_update(there)
        names = [name for name in reversed(there) if name not in ended]
        found = list(self._known(names, self.batch))
        ended.update(batch.id for batch in found if batch.status in TERMINAL)
        return [batch for batch in found if batch.status not in TERMINAL]

    def draft(self) -> Path:
        """The path of a new file, to fill and `add`. Raises `NotNowError` if the key's limit of files is reached."""
        for directory in (self.settings.directory, self.directory):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)  # an earlier version made directories that their own user cannot enter
        most = self.settings.files_per_key
        drafts = sum(1 for _ in self.directory.glob("*.draft"))
        if len(self._names("file-")) + drafts >= most:
            raise NotNowError(f"this key has {most} files (batches.files_per_key); delete some")
        return self.directory / f"{_new_name('')}.draft"

    def add(self, draft: Path, filename: str, purpose: str) -> FileRecord:
        """Turn a filled draft into a file."""
        record = FileRecord(_new_name("file-"), draft.stat().st_size, int(time.time()), filename, purpose)
        data = self.path(record.id, "data")
        draft.rename(data)
        try:
            self._write(record)
        except BaseException:  # e.g. a full disk: nobody could see the file, or delete it
            data.unlink(missing_ok=True)
            raise
        return record

    def has_results(self, batch: Batch, kind: str) -> bool:
        """Whether the worker has written results of this kind (`output` or `errors`)."""
        written = self.path(batch.id, kind)
        return written.exists() and written.stat().st_size > 0

    def keep_result(self, batch: Batch, kind: str) -> str | None:
        """Turn the worker's results (`kind`: `output` or `errors`) into a file; returns its name, None if it is empty.

        May be repeated after a crash.
        """
        written = self.path(batch.id, kind)
        name = f"{batch.id.replace('batch_', 'file-')}-{kind}"
        data = self.path(name, "data")
        if self.has_results(batch, kind):
            written.rename(data)
        written.unlink(missing_ok=True)
        if not data.exists():
            return None
        size = data.stat().st_size
        self._write(FileRecord(name, size, int(time.time()), f"{batch.id}_{kind}.jsonl", "batch_output"))
        return name

    def delete(self, name: str) -> None:
        """Remove a file. Raises `NotFoundError`, `NotNowError` if an unfinished batch uses it."""
        self.file(name)
        if any(batch.input_file_id == name for batch in self.unfinished(set())):
            raise NotNowError(f"{name} is the input of a batch that has not ended")
        self.path(name, "json").unlink()
        self.path(name, "data").unlink()

    def make_batch(self, input_file_id: str, endpoint: str, window: str, metadata: Mapping[str, str] | None) -> Batch:
        """Create a batch. Raises `NotFoundError`, `NotNowError` if its results would exceed the key's limit of files.

        Clients cannot delete batches, so of the ended ones only as many are kept as the key may have files.
        """
        self.file(input_file_id)
        length_s = window_s(window)
        most = self.settings.files_per_key
        known = self.batches()
        if len(self._names("file-")) + 2 * sum(one.status not in TERMINAL for one in known) + 2 > most:
            raise NotNowError(f"the results would be more than {most} files (batches.files_per_key); delete some")
        ended = sorted((one for one in known if one.status in TERMINAL), key=lambda one: (one.ended_at, one.id))
        for one in ended[:-most]:
            self.path(one.id, "cancel").unlink(missing_ok=True)
            self.path(one.id, "json").unlink(missing_ok=True)
        now_s = int(time.time())
        about = (endpoint, input_file_id, window, now_s, now_s + length_s)
        batch = Batch(_new_name("batch_"), *about, metadata=dict(metadata) if metadata else None)
        self._write(batch)
        return batch

    def cancel(self, name: str) -> Batch:
        """Request the cancellation of a batch. Raises `NotFoundError`, `NotNowError` if it has ended."""
        found = self.batch(name)
        if found.status in TERMINAL or found.status == "finalizing":
            raise NotNowError(f"{name} is {found.status}")
        self.path(name, "cancel").touch()
        return self.batch(name)

    def update(self, batch: Batch) -> None:
        """Save a batch; for the worker."""
        self._write(batch)

    def _names(self, kind: str) -> list[str]:
        """The names of a kind, newest first."""
        with suppress(FileNotFoundError):
            return sorted((path.stem for path in self.directory.glob(f"{kind}*.json")), reverse=True)
        return []

    @staticmethod
    def _known(names: Sequence[str], read: Callable[[str], _Record]) -> Iterator[_Record]:
        """The records of those that still exist."""
        for name in names:
            with suppress(NotFoundError):
                yield read(name)

    def _read(self, name: str, kind: type[_Record]) -> _Record:
        path = self.path(name, "json")
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            raise NotFoundError(f"no such file or batch: {name!r}") from error

    def _write(self, record: FileRecord | Batch) -> None:
        replace_file_durably(self.path(record.id, "json"), msgspec.json.encode(record), mode=0o600)


def owners(settings: BatchSettings) -> Iterator[Owned]:
    """All owners that have files. Raises `OSError`."""
    if settings.directory.is_dir():
        for path in sorted(settings.directory.iterdir()):
            yield Owned(path, settings)


_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
_LONGEST_S = 30 * 86_400


def window_s(window: str) -> int:
    """A completion window such as `24h` or `7d` in seconds. Raises `NotNowError` for any other text."""
    found = _WINDOW.fullmatch(window)
    length_s = int(found[1]) * (3600 if found[2] == "h" else 86_400) if found else 0
    if not 0 < length_s <= _LONGEST_S:
        raise NotNowError(f"completion_window: found {window[:40]!r}, accepted: 1h to 720h, 1d to 30d")
    return length_s

"""A file with the little that must survive a daemon and is not in Slurm itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from explsched.atomic_file import replace_file_durably
from explsched.log import event
from slurm_plugin.daemon_user import hand_over

_LOG = logging.getLogger("explsched.notes")
_Notes = TypeVar("_Notes")


class SavedState(Generic[_Notes]):
    """State that a restarted daemon reads from a file. An unusable file is logged and ignored.

    `about` names the state, `if_lost` says what a daemon does without it.
    """

    def __init__(self, path: Path, kind: type[_Notes], about: str, if_lost: str) -> None:
        self.path = path
        self._kind = kind
        self._about = about
        self._if_lost = if_lost
        self._is_writable = True

    def read(self) -> _Notes | None:
        """The state that an earlier daemon saved; None if the file is missing or unreadable."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            event(_LOG, logging.WARNING, f"saved {self._about} ignored", why=f"{self.path}: {error}")
            return None

    def write(self, notes: _Notes, *, mode: int = 0o640) -> bool:
        """Replace the state; it is on disk when this returns True. A failure is logged once, until it works.

        It is the daemon's, also if root writes it by `sexplschedd --once`, whatever root's umask is.
        """

        def give(descriptor: int) -> None:
            hand_over(descriptor, self.path.parent)

        try:
            replace_file_durably(self.path, msgspec.json.encode(notes), mode=mode, prepare=give)
        except OSError as error:
            if self._is_writable:
                what = f"{self._about} not saved; a restarted daemon {self._if_lost}"
                event(_LOG, logging.WARNING, what, why=f"{self.path}: {error.strerror}")
            self._is_writable = False
        else:
            self._is_writable = True
        return self._is_writable

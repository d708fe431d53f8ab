"""Where the files of a gateway lie. All below one directory that its nodes share and only its user may enter."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The files of a gateway, all below `root`."""

    root: Path

    def make(self) -> None:
        """Make the directories. Raises `OSError`."""
        for directory in (self.root, self.root / "replicas"):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)

    @property
    def address(self) -> Path:
        """The URL of the gateway, one line; changes when it moves to another node."""
        return self.root / "address"

    @property
    def gateway(self) -> Path:
        """JSON: the job, host and process that serve at the address."""
        return self.root / "gateway.json"

    @property
    def lock(self) -> Path:
        """Held by the control plane."""
        return self.root / "lock"

    @property
    def memory(self) -> Path:
        """What the control plane remembers."""
        return self.root / "state.json"

    @property
    def status(self) -> Path:
        """What the control plane shows, about once a second."""
        return self.root / "status.json"

    @property
    def events(self) -> Path:
        """The event log, JSON lines."""
        return self.root / "events.jsonl"

    @property
    def access_log(self) -> Path:
        """The access logs of the gateway's jobs that have ended, JSON lines."""
        return self.root / "access.jsonl"

    @property
    def overrides(self) -> Path:
        """What `gateway scale` has set, JSON."""
        return self.root / "overrides.json"

    @property
    def closing(self) -> Path:
        """Present while `gateway down` drains everything."""
        return self.root / "closing"

    @property
    def handover(self) -> Path:
        """The job id of a gateway job whose data plane is ready to take over."""
        return self.root / "handover"

    @property
    def accepted(self) -> Path:
        """Directory of the services file and the file of keys as they were last accepted."""
        return self.root / "accepted"

    @property
    def reload(self) -> Path:
        """A request to take the services file again: any text that no request before it had."""
        return self.root / "reload"

    @property
    def reloaded(self) -> Path:
        """JSON: the answer to the last such request."""
        return self.root / "reloaded.json"

    def replica(self, name: str) -> Path:
        """The directory of a replica: its script, its log, its registration."""
        return self.root / "replicas" / name

    @property
    def identity(self) -> Path:
        """Directory of the authority that says which replicas are the gateway's; see `identity`."""
        return self.root / "identity"

    def prune(self, keep: frozenset[str], most: int) -> None:
        """Remove the oldest directories of ended replicas until `most` are left; `keep` are those in use."""
        ended = [path for path in (self.root / "replicas").iterdir() if path.name not in keep]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[: max(0, len(ended) - most)]:
            shutil.rmtree(path)

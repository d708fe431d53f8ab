"""The data plane's files: where they lie, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from explsched.atomic_file import replace_file
from inference_gateway.errors import StartError


@dataclass(frozen=True, slots=True)
class Files:
    """Where the data plane's files lie in its directory."""

    directory: Path

    @property
    def configuration(self) -> Path:
        """What HAProxy reads when it starts and when it is reloaded."""
        return self.directory / "haproxy.cfg"

    @property
    def authority(self) -> Path:
        """The certificate that a replica's has to be signed with."""
        return self.directory / "authority.pem"

    @property
    def gateway_certificate(self) -> Path:
        """What replicas are shown: certificate and key, mode 600."""
        return self.directory / "gateway.pem"

    @property
    def page(self) -> Path:
        """The chat page."""
        return self.directory / "chat.html"

    @property
    def turns(self) -> Path:
        """The order of waiting requests, in Lua."""
        return self.directory / "turns.lua"

    @property
    def prompts(self) -> Path:
        """Where long prompts go, in Lua."""
        return self.directory / "prompts.lua"

    @property
    def stats_socket(self) -> Path:
        """The runtime API of the HAProxy that takes new requests."""
        return self.directory / "stats.sock"

    @property
    def master_socket(self) -> Path:
        """The runtime API of the master process, which knows the HAProxys that finish their last requests."""
        return self.directory / "master.sock"

    @property
    def activator_socket(self) -> Path:
        """Where the activator takes requests."""
        return self.directory / "activator.sock"

    @property
    def again_socket(self) -> Path:
        """Where HAProxy takes requests back whose `model` the activator has found."""
        return self.directory / "again.sock"

    @property
    def control_socket(self) -> Path:
        """Where the control plane hears of cold starts; see `activator.wake`."""
        return self.directory / "control.sock"

    @property
    def services(self) -> Path:
        """What the activator knows of the services."""
        return self.directory / "services.json"

    @property
    def batches(self) -> Path:
        """What the activator knows of the batch lane: see `settings.BatchSettings`."""
        return self.directory / "batches.json"

    @property
    def starts(self) -> Path:
        """What the control plane expects of starting replicas, by service: see `endpoints.StartForecast`."""
        return self.directory / "starts.json"

    @property
    def control_metrics(self) -> Path:
        """Prometheus text that the control plane may leave here; /metrics appends it."""
        return self.directory / "control.prom"

    @property
    def activator_pid(self) -> Path:
        """Process id of the activator."""
        return self.directory / "activator.pid"

    @property
    def activator_log(self) -> Path:
        """What the activator says."""
        return self.directory / "activator.log"

    @property
    def pid(self) -> Path:
        """Process id of the master."""
        return self.directory / "haproxy.pid"

    @property
    def access_pipe(self) -> Path:
        """Where HAProxy writes a line a request; the activator moves them to the access log."""
        return self.directory / "access.pipe"

    @property
    def access_log(self) -> Path:
        """One JSON object a request; it may be moved away at any time."""
        return self.directory / "access.log"

    @property
    def messages(self) -> Path:
        """What HAProxy says about itself."""
        return self.directory / "haproxy.log"

    @property
    def endpoints(self) -> Path:
        """One file a service with its replicas."""
        return self.directory / "endpoints"

    @property
    def keys(self) -> Path:
        """Digest of a key -> its name."""
        return self.directory / "keys.map"

    @property
    def limits(self) -> Path:
        """Name of a key -> requests per minute."""
        return self.directory / "limits.map"

    @property
    def expiries(self) -> Path:
        """Name of a key -> when it expires, seconds since the epoch."""
        return self.directory / "expiries.map"

    @property
    def spent(self) -> Path:
        """Name of a key that has used up its tokens -> when it may come again, seconds since the epoch."""
        return self.directory / "spent.map"

    @property
    def weights(self) -> Path:
        """Name of a key -> how many of its waiting requests go before those of others; 1 where there is none."""
        return self.directory / "weights.map"

    @property
    def batch(self) -> Path:
        """Names of the keys whose requests wait for all others."""
        return self.directory / "batch.map"

    @property
    def restricted(self) -> Path:
        """Names of the keys that may not use every service -> one that they may use."""
        return self.directory / "restricted.map"

    @property
    def grants(self) -> Path:
        """KEY/SERVICE for what a restricted key may use."""
        return self.directory / "grants.map"

    @property
    def models(self) -> Path:
        """Model or service name -> service."""
        return self.directory / "models.map"

    @property
    def narrow(self) -> Path:
        """Names of the services that have not all the paths that any has."""
        return self.directory / "narrow.map"

    @property
    def paths(self) -> Path:
        """SERVICE/PATH for each path of such a service."""
        return self.directory / "paths.map"

    @property
    def prefixes(self) -> Path:
        """SERVICE/PATH/ for each path of such a service below which all is open."""
        return self.directory / "prefixes.map"

    @property
    def long_from(self) -> Path:
        """Service -> from how many bytes on a body is long; only where it is known what replicas read."""
        return self.directory / "long_from.map"

    @property
    def read_until(self) -> Path:
        """Service -> when its replicas will have read all they have, in ms since the epoch."""
        return self.directory / "read_until.map"

    @property
    def retry_after(self) -> Path:
        """Service -> seconds for Retry-After."""
        return self.directory / "retry_after.map"


def write(path: Path, text: str) -> None:
    """Replace a file that only this user may read. Raises `StartError`."""
    try:
        replace_file(path, text, mode=0o600)
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {error.strerror}") from error


def version(path: Path | None) -> str:
    """Another text for another content of a file; empty for none, and for one that is not there."""
    if path is None or not path.exists():
        return ""
    found = path.stat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"

"""The data plane's files: their paths, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from explsched.atomic_file import replace_file
from inference_gateway.errors import StartError


@dataclass(frozen=True, slots=True)
class Files:
    """The paths of the data plane's files, in its directory.

    `own_name` is the directory's name for its processes, where that is another one than ours.
    """

    directory: Path
    own_name: Path | None = None

    def as_argument(self, path: Path) -> str:
        """The name of the directory, or of a file in it, on the command line of its processes."""
        return str((self.own_name or self.directory) / path.relative_to(self.directory))

    @property
    def configuration(self) -> Path:
        """HAProxy's configuration, read at start and at reload."""
        return self.directory / "haproxy.cfg"

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signs the replicas' certificates."""
        return self.directory / "authority.pem"

    @property
    def gateway_certificate(self) -> Path:
        """The gateway's client certificate and key, mode 0600."""
        return self.directory / "gateway.pem"

    @property
    def certificate(self) -> Path:
        """The certificate and key that the gateway shows its clients, mode 0600."""
        return self.directory / "certificate.pem"

    @property
    def page(self) -> Path:
        """The chat page."""
        return self.directory / "chat.html"

    @property
    def turns(self) -> Path:
        """The Lua script that orders waiting requests."""
        return self.directory / "turns.lua"

    @property
    def prompts(self) -> Path:
        """The Lua script that places long prompts."""
        return self.directory / "prompts.lua"

    @property
    def stats_socket(self) -> Path:
        """The runtime API of the HAProxy worker that takes new requests."""
        return self.directory / "stats.sock"

    @property
    def predecessor_socket(self) -> Path:
        """Link to the runtime API of the HAProxy from which the listening socket is inherited."""
        return self.directory / "before.sock"

    @property
    def master_socket(self) -> Path:
        """The runtime API of the master process, which also knows old workers that finish their last requests."""
        return self.directory / "master.sock"

    @property
    def activator_socket(self) -> Path:
        """The socket on which the activator takes requests."""
        return self.directory / "activator.sock"

    @property
    def again_socket(self) -> Path:
        """The socket on which HAProxy takes back requests whose `model` the activator has found."""
        return self.directory / "again.sock"

    @property
    def control_socket(self) -> Path:
        """The socket on which the control plane learns of cold starts; see `endpoints.Wake`."""
        return self.directory / "control.sock"

    @property
    def services(self) -> Path:
        """JSON: the services, for the activator."""
        return self.directory / "services.json"

    @property
    def batches(self) -> Path:
        """JSON: the settings of batches, for the activator; see `settings.BatchSettings`."""
        return self.directory / "batches.json"

    @property
    def starts(self) -> Path:
        """JSON: the control plane's forecast of starts by service; see `model.StartForecast`."""
        return self.directory / "starts.json"

    @property
    def control_metrics(self) -> Path:
        """Prometheus text from the control plane, which /metrics appends."""
        return self.directory / "control.prom"

    @property
    def activator_pid(self) -> Path:
        """Process id of the activator."""
        return self.directory / "activator.pid"

    @property
    def activator_log(self) -> Path:
        """The activator's log."""
        return self.directory / "activator.log"

    @property
    def pid(self) -> Path:
        """Process id of the master."""
        return self.directory / "haproxy.pid"

    @property
    def access_pipe(self) -> Path:
        """The pipe to which HAProxy writes one line per request; the activator copies them to the access log."""
        return self.directory / "access.pipe"

    @property
    def access_log(self) -> Path:
        """The access log, one JSON object per request; it may be moved away at any time."""
        return self.directory / "access.log"

    @property
    def messages(self) -> Path:
        """HAProxy's own log."""
        return self.directory / "haproxy.log"

    @property
    def endpoints(self) -> Path:
        """Directory with one file per service that lists its replicas."""
        return self.directory / "endpoints"

    @property
    def keys(self) -> Path:
        """Map: digest of a key -> its name."""
        return self.directory / "keys.map"

    @property
    def limits(self) -> Path:
        """Map: key name -> requests per minute."""
        return self.directory / "limits.map"

    @property
    def expiries(self) -> Path:
        """Map: key name -> when it expires, seconds since the epoch."""
        return self.directory / "expiries.map"

    @property
    def spent(self) -> Path:
        """Map: name of a key that has used up its tokens -> until when it is refused, seconds since the epoch."""
        return self.directory / "spent.map"

    @property
    def weights(self) -> Path:
        """Map: key name -> its weight in fair queueing; keys that are not listed have 1."""
        return self.directory / "weights.map"

    @property
    def batch(self) -> Path:
        """Map with the names of the keys whose requests wait for all others."""
        return self.directory / "batch.map"

    @property
    def restricted(self) -> Path:
        """Map: name of a key that may not use every service -> one that it may use."""
        return self.directory / "restricted.map"

    @property
    def grants(self) -> Path:
        """Map with KEY/SERVICE for each service that a restricted key may use."""
        return self.directory / "grants.map"

    @property
    def models(self) -> Path:
        """Map: model or service name -> service."""
        return self.directory / "models.map"

    @property
    def narrow(self) -> Path:
        """Map with the names of the services that lack a path which another service has."""
        return self.directory / "narrow.map"

    @property
    def paths(self) -> Path:
        """Map with SERVICE/PATH for each path of such a service."""
        return self.directory / "paths.map"

    @property
    def prefixes(self) -> Path:
        """Map with SERVICE/PATH/ for each path of such a service whose subpaths are all open."""
        return self.directory / "prefixes.map"

    @property
    def long_from(self) -> Path:
        """Map: service -> the size in bytes from which a body is long, where the replicas' reading rate is known."""
        return self.directory / "long_from.map"

    @property
    def read_until(self) -> Path:
        """Map: service -> when its replicas will have read all their prompts, in ms since the epoch."""
        return self.directory / "read_until.map"

    @property
    def retry_after(self) -> Path:
        """Map: service -> seconds for Retry-After."""
        return self.directory / "retry_after.map"


def write(path: Path, text: str) -> None:
    """Replace a file, with mode 0600. Raises `StartError`."""
    try:
        replace_file(path, text, mode=0o600)
    except OSError as error:
        raise StartError(f"{path}: cannot be written: {error.strerror}") from error


def version(certificate: str | Path | None) -> str:
    """A text that changes with any file that HAProxy reads for this path. Raises `StartError`."""
    if not isinstance(certificate, Path):
        return ""
    try:
        found = certificate.iterdir() if certificate.is_dir() else certificate.parent.glob(f"{certificate.name}*")
        seen = (path.stat() for path in sorted(found) if path.exists())
        return ", ".join(f"{one.st_ino} {one.st_size} {one.st_mtime_ns}" for one in seen)
    except OSError as error:
        raise StartError(f"{certificate}: cannot be read: {error.strerror}") from error

"""What `sexplsched doctor` says of Slurm: what it can do, whether we may steer it, and which of its settings hinder."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

from msgspec import Struct

from explsched.cli import own_name
from explsched.errors import SlurmError
from sched_policy import catalog
from slurm_plugin.client import batch, process
from slurm_plugin.client.capabilities import LUA_SUBMIT, NEEDED, OLDEST, OPERATORS, Capabilities
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import ControllerLoad, SlurmNode, Topology
from slurm_plugin.config import Config
from slurm_plugin.instance.claim import claimed_by
from slurm_plugin.observation.observe import without_nodes
from slurm_plugin.observation.site_factors import OwnFactors

_DEFAULT_CONF = "/etc/slurm/slurm.conf"
_FETCHED_CONF = Path("/run/slurm/conf/slurm.conf")
_SHARE = catalog.PIN_JOBS - {"balanced", "simple"}
_NAMED_BY_DEFAULT = "plugstack.conf"
_INCLUDE_LINE = re.compile(r"^[ \t]*include[ \t]+(\S+)", re.MULTILINE)
_MOST_INCLUDES = 8
_PLUGIN_LINE = re.compile(r"^\s*(optional|required)\s+(\S*explsched\.so)\b", re.MULTILINE)
_PROGRAM_S = 10.0
_REFUSALS = ("invalid user id", "permission", "denied")  # Slurm's words differ by version


class Finding(Struct, frozen=True):
    """One check. `advice` says what to do; it is empty where all is well. `level` is ok, note or fault."""

    check: str
    level: str
    found: str
    advice: str = ""


def findings(client: CliClient, config: Config, refused: str) -> Iterator[Finding]:
    """What there is to say of Slurm under this configuration; `refused`: the level of what the asker may not do."""
    try:
        can = client.capabilities()
        yield from _capabilities(can)
        load = client.load()
        yield Finding("slurmctld", "ok", f"answers; {load.server_threads} threads, {load.jobs_pending} jobs pending")
        yield privilege(can, refused)
        nodes = client.nodes()
        gpus = sum(node.gpus for node in nodes)
        advice = "" if gpus else "no GPUs: set GresTypes=gpu and Gres=gpu:N (slurm.conf, gres.conf)"
        yield Finding("nodes", "ok" if gpus else "note", f"{len(nodes)} nodes, {gpus} GPUs", advice)
        yield from _partitions(config.slurm.partitions, nodes, client)
        yield from _whole_nodes(can)
        if config.policy in _SHARE and not any(node.shards for node in nodes):
            found = f"policy {config.policy} lets jobs share GPUs, but no node has shards: none will"
            yield Finding(
                "sharing", "note", found, "set Gres=gpu:N,shard:M, see docs/sharing.md#groups-of-jobs-on-one-gpu"
            )
        yield _backfill(can, load)
        yield from _topology(client.topology(nodes))
        yield from _placement(config, can)
        yield from _pins(config.policy, can)
        if can.has(OPERATORS):
            yield _slurmdbd(client)
        yield from _plain_sbatch(can, os.environ)
        yield from _built_for(can, os.environ)
        yield from _claims(can, config)
        yield from _site_factors(client, can, config)
    except SlurmError as error:
        advice = "is slurmctld running, and SLURM_CONF right?"
        if _is_refusal(str(error)):
            advice = "PrivateData in slurm.conf hides it from users who are not operators"
        yield Finding("slurmctld", "fault", str(error), advice)


def privilege(can: Capabilities, refused: str = "note") -> Finding:
    """Whether this user may steer. Slurm looks at the rights before it looks whether there is such a reservation.

    Raises `SlurmError` if slurmctld does not answer: one that is busy has refused nothing.
    """
    argv = ["scontrol", "delete", "ReservationName=explsched_doctor"]
    answer = process.run(argv, _PROGRAM_S, process.environment({}))
    words = (answer.err or answer.out).strip()
    if _is_refusal(words):
        found = f"uid {os.geteuid()} may not steer jobs ({words})"
        return Finding("privilege", refused, found, _how_to_get_it(can))
    if os.geteuid() and can.has(OPERATORS) and _admin_level() == "Operator":
        found = f"uid {os.geteuid()} may steer jobs, but as an Operator it may not write their AdminComments"
        advice = f"{_how_to_get_it(can)}; without it limits on preemption, pins and groups of jobs do not work"
        return Finding("privilege", refused, found, advice)
    # An admin looks as root, whom Slurm refuses nothing: that says nothing of the daemon.
    advice = "" if os.geteuid() else "for the daemon's own user: runuser -u explsched -- sexplsched doctor"
    return Finding("privilege", "ok", f"uid {os.geteuid()} may steer jobs", advice)


def _admin_level() -> str:
    """What slurmdbd has of this user, such as Operator; "" if it tells nothing."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", own_name(), "format=AdminLevel"]
    try:
        return process.run(argv, _PROGRAM_S, process.environment({})).out.strip()
    except SlurmError:
        return ""  # `_slurmdbd` says why


def _is_refusal(words: str) -> bool:
    return any(refusal in words.lower() for refusal in _REFUSALS)


def _how_to_get_it(can: Capabilities) -> str:
    if can.has(OPERATORS):
        return "sacctmgr add user <daemon's user> account=... AdminLevel=Admin"
    return "set up slurmdbd, which stores administrators: without it only root and SlurmUser may change priorities"


def _capabilities(found: Capabilities) -> Iterator[Finding]:
    """The table of what this Slurm can do. Only order and backfill are needed; the rest is good to know."""
    too_old = "" if found.version >= OLDEST else f"explsched is tested with Slurm {OLDEST.release} and newer"
    yield Finding("Slurm", "note" if too_old else "ok", f"version {found.version}", too_old)
    for capability, there in found:
        if there:
            yield Finding("Slurm has", "ok", f"{capability.name}: {capability.use}")
            continue
        level = "fault" if capability in NEEDED else "note"
        advice = f"set {capability.key}={capability.word}" if level == "fault" else ""
        missing = f"{capability.name} ({found.absence(capability)}); with it: {capability.use}"
        yield Finding("Slurm lacks", level, missing, advice)


def _partitions(named: Sequence[str], nodes: Iterable[SlurmNode], client: CliClient) -> Iterator[Finding]:
    if not named:
        steered = ", ".join(sorted({name for node in nodes if node.gpus for name in node.partitions})) or "none"
        found = f"slurm.partitions is empty: all partitions with GPUs are steered ({steered})"
        yield Finding("partitions", "note", found, "name those that explsched may steer")
        return
    if not (empty := without_nodes(named, nodes)):
        return
    known = client.partitions()
    if unknown := [name for name in empty if name not in known]:
        found = f"slurm.partitions names {', '.join(unknown)}, which Slurm does not have: no job of it is steered"
        yield Finding("partitions", "fault", found, f"mend slurm.partitions (Slurm has {', '.join(sorted(known))})")
    if unseen := [name for name in empty if name in known]:
        found = f"Slurm shows no node of {', '.join(unseen)}: jobs there are ordered, but no start of them is planned"
        advice = "if they are cloud nodes, powered down: set PrivateData=cloud in slurm.conf, and Slurm shows them"
        yield Finding("partitions", "note", found, advice)


def _whole_nodes(can: Capabilities) -> Iterator[Finding]:
    """Plans leave jobs that share their nodes with no other to Slurm: with some settings that is every job."""
    selection = can.settings.get("SelectType", "")
    if selection == "select/linear":
        found = f"SelectType is {selection}, which gives every job whole nodes: all jobs are left to Slurm"
        yield Finding(
            "whole nodes", "note", found, "set SelectType=select/cons_tres, or no job is preempted for others"
        )


def _backfill(can: Capabilities, load: ControllerLoad) -> Finding:
    """A cycle that yields its locks restores the old priorities, and ends when a reservation changes."""
    last_s, yields_s = load.backfill_last_cycle_s, can.backfill_yields_after_s
    found = f"the last cycle worked {last_s:.1f} s, a cycle yields its locks after {yields_s:g} s"
    if last_s <= yields_s:
        return Finding("backfill", "ok", found)
    advice = (
        "what the daemon writes meanwhile is not in force until it writes it again; "
        "shorten the cycles (bf_max_job_test, bf_resolution) or raise bf_yield_interval in SchedulerParameters"
    )
    return Finding("backfill", "note", found, advice)


def _topology(found: Topology) -> Iterator[Finding]:
    if found.fault:
        advice = "jobs over several nodes get no leases: Slurm chooses their nodes"
        yield Finding("topology", "note", f"not known: {found.fault}", advice)
    elif found.switches:
        leaves = {above[0].name for above in found.switches.values()}
        told = f"{len(found.switches)} nodes below {len(leaves)} leaf switches or blocks"
        yield Finding("topology", "ok", f"{told}: jobs over several nodes are planned near each other")


def _placement(config: Config, can: Capabilities) -> Iterator[Finding]:
    """Jobs that Slurm starts while they are submitted, or soon after, are where they are before anybody can plan."""
    policy = config.policy
    if policy not in catalog.CHOOSE_NODES:
        return
    least_s = math.ceil(2 * config.interval_s)
    if not can.defers:
        found = f"policy {policy} chooses nodes, but Slurm starts jobs while they are submitted, where it likes"
        yield Finding("placement", "note", found, f"set SchedulerParameters=defer,batch_sched_delay={least_s}")
    elif can.starts_soonest_s <= config.interval_s:
        found = (
            f"policy {policy} chooses nodes every {config.interval_s:g} s, but Slurm may start a job "
            f"{can.starts_soonest_s:g} s after its submission, where it likes"
        )
        advice = (
            f"set batch_sched_delay and bf_interval in SchedulerParameters to {least_s} or more, or lower interval_s"
        )
        yield Finding("placement", "note", found, advice)
    else:
        yield Finding("placement", "ok", f"policy {policy} chooses nodes, and Slurm leaves it time (defer)")


def _pins(policy: str, can: Capabilities) -> Iterator[Finding]:
    """A pin that comes when its job has just started is an order to resize it, unless Slurm refuses those."""
    if policy in catalog.PIN_JOBS:
        if not can.resizes_running_jobs:
            yield Finding("pins", "ok", f"policy {policy} pins jobs, and Slurm resizes none that run")
            return
        found = f"policy {policy} pins waiting jobs to nodes; one that starts meanwhile is resized by its pin"
        advice = (
            "set SchedulerParameters=disable_job_shrink; without accounting Slurm refuses every later change of such a "
            "job, and takes 5 s for it"
        )
        yield Finding("pins", "note", found, advice)


def _claims(can: Capabilities, config: Config) -> Iterator[Finding]:
    """Directories of other clusters, for which the daemon does not start."""
    for key, directory in config.claimed().items():
        with suppress(OSError):  # closed to whoever asks; others of its faults are told with the files
            if (owner := claimed_by(directory)) not in ("", can.cluster_name):
                found = f"{directory} belongs to cluster {owner}, so the daemon of {can.cluster_name} does not start"
                yield Finding(key, "fault", found, "see docs/operation.md#one-daemon-per-cluster")


def _site_factors(client: CliClient, can: Capabilities, config: Config) -> Iterator[Finding]:
    """Who else sets site factors."""
    if plugin := can.site_factor_plugin:
        found = f"PrioritySiteFactorPlugin is {plugin}, which sets site factors itself, again and again"
        yield Finding("site factor plugin", "fault", found, "two cannot: stop the daemon, or remove the plugin")
    if config.order.scope == "partition":
        yield _whole_range(can, config)
        return
    if can.lets_users_top:
        found = "users may use it, and from exchanged positions it can raise a job above those of other users"
        yield Finding("scontrol top", "note", found, "take enable_user_top out of SchedulerParameters")
    others = OwnFactors.of_daemon(config.order.site_factor_file).others(client.jobs())
    if not others:
        yield Finding("site factors", "ok", "none were set by others")
        return
    named = ", ".join(f"job {job_id}: {factor}" for job_id, factor in sorted(others.items())[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    advice = (
        f"they are kept, and explsched's are added; {config.order.site_factor_file} notes which are explsched's own"
    )
    yield Finding("site factors", "note", f"some were set by others ({named}{more})", advice)


def _whole_range(can: Capabilities, config: Config) -> Finding:
    """Under scope `partition` site factors have the whole range, and are added to what Slurm's own factors count."""
    found = "under order.scope partition all are taken for explsched's own"
    most = config.slurm.site_factor_range
    swamped = [f"{key} ({weight})" for key, weight in can.priority_weights.items() if weight <= most]
    if not swamped:
        return Finding("site factors", "ok", found)
    found = f"{found}; they go up to {most}, so the policy decides where {', '.join(swamped)} would"
    return Finding("site factors", "note", found, "right for one owner; for many users: order.scope user or account")


def _slurmdbd(client: CliClient) -> Finding:
    """Operators and history are there. slurmctld does without it for a while, so its absence is easily overlooked."""
    try:
        client.clusters()
    except SlurmError as error:
        advice = "is slurmdbd running? Without it jobs and daemon continue, but sacct and changes of rights fail"
        return Finding("slurmdbd", "note", str(error), advice)
    return Finding("slurmdbd", "ok", "answers")


def _plain_sbatch(can: Capabilities, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether `sbatch` itself takes our options here: what Slurm's configuration says of the plugin and the script."""
    conf, plugstack = _conf(can, environment), _plugstack(can, environment)
    line = _plugin_line(plugstack)
    if line is None:
        found = f"{plugstack} has no explsched.so: sbatch lacks the --expl-... options"
        # Beside a slurm.conf that can be read no plugstack.conf means no plugins.
        if (fault := _unreadable(plugstack)) and (plugstack.is_file() or _unreadable(conf)):
            found = f"{plugstack}: {fault}: it is not known whether sbatch has the --expl-... options"
        yield Finding("plain sbatch", "note", found, "not needed with sxbatch; see docs/admin.md")
    elif line[1] == "required":
        advice = "write optional, so that a fault of the plugin never drains a node"
        yield Finding("plain sbatch", "note", f"{plugstack} has explsched.so as required", advice)
    else:
        yield Finding("plain sbatch", "ok", f"{plugstack} has explsched.so")
    script = conf.with_name("job_submit.lua")
    if not can.has(LUA_SUBMIT):
        found = "Slurm has no JobSubmitPlugins=lua: the daemon does not learn of options on plain sbatch"
        yield Finding("job_submit.lua", "note", found, "not needed with sxbatch; see docs/admin.md")
    elif fault := _unreadable(script):
        advice = "look on slurmctld's host, as root: it must call explsched_submit"
        yield Finding("job_submit.lua", "note", f"{script}: {fault}", advice)
    elif "explsched_submit" not in _text(script, "--"):
        advice = "copy job_submit.lua from share/explsched, or call its function from yours"
        yield Finding("job_submit.lua", "note", f"{script} does not call explsched_submit", advice)
    else:
        yield Finding("job_submit.lua", "ok", str(script))


def _built_for(can: Capabilities, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether our native parts are of Slurm's release: it refuses a plugin of another one, libslurm another program."""
    if line := _plugin_line(_plugstack(can, environment)):
        # Slurm searches one directory after the other; an absolute path stays as it is.
        places = [Path(directory, line[2]) for directory in can.settings.get("PluginDir", "").split(":")]
        path = next((place for place in places if not _unreadable(place)), places[0])
        what = "SPANK plugin"
        advice = f"build it against Slurm {can.version.release} (docs/admin.md) and copy it to every node"
        try:
            built = re.search(rb"explsched:slurm\0(\d\d\.\d\d)", path.read_bytes())
        except OSError as error:
            yield Finding(what, "note", f"{path}: {error.strerror}", "looked for here; nodes may have it elsewhere")
        else:
            release = built[1].decode() if built else "a release that it does not name"
            if release == can.version.release:
                yield Finding(what, "ok", f"{path} is built for Slurm {release}")
            else:
                found = (
                    f"{path} is built for {release}, Slurm is {can.version}: it is not loaded, and --expl-... refused"
                )
                yield Finding(what, "fault", found, advice)
    if batch.find(can.version.release, _PROGRAM_S, environment) is None:
        found = f"no {batch.PROGRAM} that is built for Slurm {can.version.release}: scontrol writes, in twice the time"
        yield Finding("writer", "note", found, "install explsched where libslurm's headers are, see docs/admin.md")


def _conf(can: Capabilities, environment: Mapping[str, str]) -> Path:
    """slurm.conf here: the one that commands are told of, else slurmctld's, else what slurmd has fetched from it."""
    if named := environment.get("SLURM_CONF"):
        return Path(named)
    theirs = Path(can.settings.get("SLURM_CONF") or _DEFAULT_CONF)
    return _FETCHED_CONF if _unreadable(theirs) and not _unreadable(_FETCHED_CONF) else theirs


def _plugstack(can: Capabilities, environment: Mapping[str, str]) -> Path:
    """The file that names SPANK plugins; without a setting it is beside slurm.conf."""
    theirs = Path(can.settings.get("PlugStackConfig") or _NAMED_BY_DEFAULT)
    beside = _conf(can, environment).with_name(_NAMED_BY_DEFAULT)
    return theirs if theirs.is_absolute() and not _unreadable(theirs) else beside


def _plugin_line(path: Path, depth: int = _MOST_INCLUDES) -> re.Match[str] | None:
    """The line with our plugin, here or in a file that is included."""
    text = "" if _unreadable(path) else _text(path, "#")
    if (line := _PLUGIN_LINE.search(text)) or not depth:
        return line
    # Slurm takes a relative pattern from the directory of the file that includes.
    patterns = (path.parent / pattern for pattern in _INCLUDE_LINE.findall(text))
    included = (Path(name) for pattern in patterns for name in sorted(glob(str(pattern))))  # noqa: PTH207  absolute
    return next(filter(None, (_plugin_line(each, depth - 1) for each in included)), None)


def _unreadable(path: Path) -> str:
    """Why this user cannot read a file; "" if he can."""
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _text(path: Path, comment: str) -> str:
    """The text of a file, without comments."""
    return re.sub(rf"(^|\s){comment}.*", r"\1", path.read_text(encoding="utf-8", errors="replace"))

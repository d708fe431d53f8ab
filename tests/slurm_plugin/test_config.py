"""A configuration that cannot be used is refused with file, key and what is accepted."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from explsched import strict_yaml
from sched_policy import catalog
from slurm_plugin import config
from slurm_plugin.config import Config, ConfigError, UtilitySection

PATH = Path("/etc/explsched/explsched.yaml")
PATHS = (
    ("order", "site_factor_file"),
    ("progress", "spool"),
    ("audit", "file"),
    ("state", "directory"),
    ("state", "socket"),
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("polcy: fifo", "explsched.yaml: unknown key 'polcy'; did you mean 'policy'"),
        ("slurm: {clinet: cli}", "unknown key 'slurm.clinet'; did you mean 'client'"),
        ("slurm: {client: rest}", "slurm.client: must be one of auto, pyslurm, cli, found 'rest'"),
        ("slurm: {partitions: main}", "slurm.partitions: must be a list of strings, found 'main'"),
        ("policy: exlpsched", "did you mean 'explsched'"),
        ("utility: {sweep_strategy: ash}", "did you mean 'asha'.*known: adaptive, asha, hyperband, median-stop"),
        ("interval_s: -1", "interval_s: must be a number of seconds above 0 to 86,400, found -1"),
        ("interval_s: 15s", "interval_s: must be a number of seconds .*, found '15s'"),
        ("interval_s: 1.0e+9", "interval_s: .*86,400, found 1000000000.0"),
        ("interval_s: .nan", "interval_s: must be a number of seconds .*, found nan"),
        ("preemption: {margin: 1.0}", "preemption.margin: must be a number above 1 to 1,000, found 1.0"),
        (
            "backfill: {reservation_depth: 1.5}",
            "backfill.reservation_depth: .* or null, found 1.5",
        ),
        (
            "order: {site_factor_file: notes.json}",
            "order.site_factor_file: must be an absolute path, found 'notes.json'",
        ),
        *((f"{key}: {{{name}: /}}", f"{key}.{name}: must be a path below /, found '/'") for key, name in PATHS),
        ("policy: muri-s", "order.scope: policy muri-s lets jobs of different users take turns, .* partition only"),
        ("las: {limits_gpu_s: []}", "las.limits_gpu_s: must be a list, each a number above 0, of length from 1 to 16"),
        ("las: {limits_gpu_s: [7200, 3250]}", "las.limits_gpu_s: must rise, found"),
        ("las: {limits_gpu_s: [7200, 7200]}", "las.limits_gpu_s: must rise, found"),
        (f"state: {{socket: /{'a' * 107}}}", "state.socket: the path of a Unix socket has at most 107 bytes"),
        ("progress: {spool: spool}", "progress.spool: must be an absolute path, found 'spool'"),
        ("- a\n- b", "must be a mapping of keys to values, found a list"),
        ("policy: fifo\na: 'x\nb: 2", "explsched.yaml, line 2: is not YAML: while scanning a quoted scalar"),
        ("a: \x01", "explsched.yaml: is not YAML: unacceptable character"),
        (
            "policy: fifo\ninterval_s: 2026-02-30",
            "explsched.yaml, line 2: .*'2026-02-30' is not a value of .*timestamp",
        ),
        ("interval_s: 0x_", "explsched.yaml, line 1: is not YAML: '0x_' is not a value of .*:int"),
        ("policy: !!bool x", "explsched.yaml, line 1: is not YAML: 'x' is not a value of .*:bool"),
        ("policy: !!timestamp x", "explsched.yaml, line 1: is not YAML: 'x' is not a value of .*:timestamp"),
        (f"interval_s: {'9' * 5000}", "explsched.yaml, line 1: is not YAML: '9{79} is not a value of .*:int"),
        ('audit: {file: "/a\\0b"}', r"audit.file: must be a path, found '/a\\x00b'"),
        ("policy: !!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_faults_are_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.parse(text, PATH)


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse("polcy: x\ninterval_s: 0", PATH)
    assert len(str(caught.value).splitlines()) == 2


def test_a_job_is_asked_to_save_early_enough_for_grace_and_requeue() -> None:
    """Its grace period, and a few passes: to plan, to see the checkpoint, to requeue."""
    options = config.parse("interval_s: 10\npreemption: {grace_s: 90}", PATH).policy_options()
    assert options.resize_lead_s >= 90 + 3 * 10


def test_an_empty_file_means_the_defaults() -> None:
    assert config.parse("", PATH) == config.Config()


def test_the_option_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, given = tmp_path / "a.yaml", tmp_path / "b.yaml"
    named.write_text("policy: srsf")
    given.write_text("policy: fifo")
    monkeypatch.setenv(config.PATH_VARIABLE, str(named))
    assert config.load().policy == "srsf"
    assert config.load(given).policy == "fifo"


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.load(tmp_path / "b.yaml")


def test_where_the_file_in_etc_cannot_be_looked_for_the_defaults_do_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory that is closed to this user; even root gets an error for a name that is too long."""
    monkeypatch.delenv(config.PATH_VARIABLE, raising=False)
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / ("x" * 300) / "explsched.yaml")
    with pytest.raises(ConfigError, match=r"/explsched.yaml: cannot be read: File name too long"):
        config.load()
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "none" / "explsched.yaml")
    assert config.load() == config.Config()


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("quantum_s", 50.0),
        ("stop_threshold", 0.5),
        ("stop_leader_threshold", 0.5),
        ("stop_min_share", 0.5),
        ("sweep_strategy", "asha"),
        ("no_report_order", "fifo"),
    ],
)
def test_a_key_that_one_objective_ignores_says_which_one_it_is_for(key: str, other: object) -> None:
    usual = {name: Config(utility=UtilitySection(objective=name)) for name in ("best", "total")}
    changed = {name: replace(one, utility=replace(one.utility, **{key: other})) for name, one in usual.items()}
    built = {
        name: [catalog.build("explsched", one.policy_options()) for one in (usual[name], changed[name])]
        for name in usual
    }
    (meaning,) = (one.meaning for one in strict_yaml.keys(Config) if one.name == f"utility.{key}")
    serves = [name for name, (before, after) in built.items() if before != after]
    assert serves, "the key changes no policy"
    assert re.findall(r"\(objective (\w+)\)", meaning) == (serves if len(serves) == 1 else [])

"""`sexplsched admin install` leaves a machine as it should be, keeps what an admin changed, and can be undone."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from explsched.cli.main import root as command
from slurm_plugin.config import Config, parse
from slurm_plugin.installation import change, compare, hints, layout, record
from slurm_plugin.installation.compare import State
from slurm_plugin.installation.layout import Item, Places

CONFIG = "etc/explsched/explsched.yaml"
UNIT = "usr/local/lib/systemd/system/sexplschedd.service"


@pytest.fixture(autouse=True)
def slurm_conf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")


def admin(root: Path, *words: str) -> Result:
    return CliRunner().invoke(command, ["admin", *words, "--root", str(root)], catch_exceptions=False)


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_installed_twice_is_the_same_as_once_and_uninstalled_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/mine").write_text("a file of another")
    before = tree(tmp_path)
    missing = admin(tmp_path, "install", "--check", "--prefix", "/usr/local")
    assert missing.exit_code == 1
    assert f"/{UNIT}: missing" in missing.output
    assert tree(tmp_path) == before
    assert f"installed: /{UNIT}" in admin(tmp_path, "install", "--prefix", "/usr/local").output
    once = tree(tmp_path)
    assert admin(tmp_path, "install", "--check", "--prefix", "/usr/local").exit_code == 0
    again = admin(tmp_path, "install", "--prefix", "/usr/local").output
    assert f"unchanged: /{UNIT}" in again
    assert "installed:" not in again
    assert tree(tmp_path) == once
    assert f"removed: /{UNIT}" in admin(tmp_path, "uninstall").output
    assert tree(tmp_path) == before
    assert "nothing here was installed" in admin(tmp_path, "uninstall").output


def test_a_changed_configuration_is_kept_and_no_fault(tmp_path: Path) -> None:
    admin(tmp_path, "install")
    assert parse((tmp_path / CONFIG).read_text(), Path(CONFIG)) == Config()
    (tmp_path / CONFIG).write_text("policy: srsf\n")
    assert f"kept: /{CONFIG}" in admin(tmp_path, "install").output
    assert admin(tmp_path, "install", "--check").exit_code == 0
    assert f"kept, changed since it was installed: /{CONFIG}" in admin(tmp_path, "uninstall").output
    assert tree(tmp_path) == {"etc": None, "etc/explsched": None, CONFIG: b"policy: srsf\n"}


def test_a_changed_unit_is_kept_and_told(tmp_path: Path) -> None:
    admin(tmp_path, "install", "--prefix", "/usr/local")
    (tmp_path / UNIT).write_text("[Unit]\n")
    checked = admin(tmp_path, "install", "--check", "--prefix", "/usr/local")
    assert checked.exit_code == 1
    assert f"/{UNIT}: changed" in checked.output
    admin(tmp_path, "install", "--prefix", "/usr/local")
    assert (tmp_path / UNIT).read_text() == "[Unit]\n"


def test_the_unit_starts_the_daemon_where_it_is(tmp_path: Path) -> None:
    admin(tmp_path, "install", "--prefix", "/usr/local", "--commands", "/opt/explsched/bin")
    assert "\nExecStart=/opt/explsched/bin/sexplschedd --config" in (tmp_path / UNIT).read_text()


def test_a_prefix_must_be_absolute(tmp_path: Path) -> None:
    refused = admin(tmp_path, "install", "--prefix", "usr")
    assert refused.exit_code == 2
    assert "usr: must be absolute" in refused.output
    assert tree(tmp_path) == {}


def test_a_file_of_an_older_version_is_replaced(tmp_path: Path) -> None:
    old, new = Item(Path("/etc/x/y"), "old"), Item(Path("/etc/x/y"), "new")
    assert list(change.install(compare.findings([old], tmp_path), tmp_path)) == ["installed: /etc/x/y"]
    (finding,) = compare.findings([new], tmp_path)
    assert (finding.state, finding.is_fault) == (State.OUTDATED, True)
    assert list(change.install([finding], tmp_path)) == ["updated: /etc/x/y"]
    assert (tmp_path / "etc/x/y").read_text() == "new"
    list(change.uninstall(tmp_path))
    assert tree(tmp_path) == {}


def test_a_file_of_another_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    item = Item(Path("/etc/y"), "ours")
    (tmp_path / "etc").mkdir()
    for text in ("theirs", "ours"):  # the same text, put there by a package, is not ours either
        (tmp_path / "etc/y").write_text(text)
        list(change.install(compare.findings([item], tmp_path), tmp_path))
        list(change.uninstall(tmp_path))
        assert (tmp_path / "etc/y").read_text() == text


def test_a_compressed_page_is_as_it_should_be(tmp_path: Path) -> None:
    item = Item(Path("/x.1"), "page")
    (tmp_path / "x.1.gz").write_bytes(gzip.compress(b"page"))
    assert compare.findings([item], tmp_path)[0].state is State.RIGHT
    (tmp_path / "x.1.gz").write_bytes(b"page")
    with pytest.raises(record.InstallationError, match=r"x\.1\.gz: cannot be read"):
        compare.findings([item], tmp_path)


def test_faults_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("not a directory")
    with pytest.raises(record.InstallationError, match="etc/y: cannot be read"):
        compare.findings([Item(Path("/etc/y"), "")], tmp_path)
    (tmp_path / "etc").unlink()
    damaged = tmp_path / "var/lib/explsched/installed.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    with pytest.raises(record.InstallationError, match=r"installed\.json: "):
        list(change.uninstall(tmp_path))


def test_hints_end_when_slurm_is_configured(tmp_path: Path) -> None:
    slurm = tmp_path / "etc/slurm"
    (slurm / "plugstack.conf.d").mkdir(parents=True)
    places = Places(Path("/usr"), Path("/usr/bin"))
    (slurm / "plugstack.conf.d/explsched.conf").write_text("#optional explsched.so\n")
    (slurm / "slurm.conf").write_text("#JobSubmitPlugins=lua\n")
    assert [hint.split()[0] for hint in hints.hints(tmp_path, places)] == ["plugstack.conf", "slurm.conf"]
    (slurm / "plugstack.conf.d/explsched.conf").write_text("required /usr/lib/explsched.so\n")
    (slurm / "slurm.conf").write_text("JobSubmitPlugins=throttle,lua\n")
    assert [hint.split()[0] for hint in hints.hints(tmp_path, places)] == ["plugstack.conf", "job_submit.lua"]
    (slurm / "plugstack.conf.d/explsched.conf").write_text("optional explsched.so spool=/x\n")
    (slurm / "job_submit.lua").write_text("return explsched_submit(job)\n")
    assert list(hints.hints(tmp_path, places)) == []
    assert "home directories" in next(hints.hints(tmp_path, Places(Path("/usr"), Path("/root/.venv/bin"))))


def test_every_file_belongs_below_the_prefix_or_etc() -> None:
    for item in layout.items(Places(Path("/usr"), Path("/usr/bin"))):
        assert item.path.is_relative_to("/usr") or item.path.is_relative_to("/etc"), item.path

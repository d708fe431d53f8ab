"""The Debian package, made of a tiny environment in place of the real one: scripts/test-package tries that one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
HOME = "usr/lib/explsched"


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root directory with an environment that holds a distribution named explsched with one command."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    root = tmp_path / "made" / "root"
    environment = root / HOME
    assert run(sys.executable, "-m", "venv", "--without-pip", environment).returncode == 0
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "tiny.py").write_text("def main():\n    print('tiny', __file__)\n")
    about = packages / "explsched-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: explsched\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[console_scripts]\ntiny = tiny:main\n")
    (about / "direct_url.json").write_text(f'{{"url": "file://{tmp_path}"}}')
    command = environment / "bin" / "tiny"
    command.write_text(f"#!{environment}/bin/python\nfrom tiny import main\nmain()\n")
    command.chmod(0o755)
    (root / "etc/explsched").mkdir(parents=True)
    (root / "etc/explsched/explsched.yaml").write_text("policy: fifo\n")
    (root / "etc/logrotate.d").mkdir()
    (root / "etc/logrotate.d/explsched").touch()
    return root


def test_an_environment_becomes_a_package_that_works_elsewhere(tree: Path, tmp_path: Path) -> None:
    done = run(SCRIPTS / "package-tree", tree, tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("explsched_1.2*+deb*.deb")
    unpacked, control = tmp_path / "unpacked", tmp_path / "control"
    assert run("dpkg-deb", "-x", package, unpacked).returncode == 0
    assert run("dpkg-deb", "-e", package, control).returncode == 0
    shutil.rmtree(tree)

    assert (unpacked / "usr/bin/tiny").read_text().startswith("#!/usr/lib/explsched/bin/python -I\n")
    code = "from tiny import main; main()"
    ran = run(unpacked / HOME / "bin/python", "-I", "-c", code)
    assert ran.stdout.split() == ["tiny", str(next(unpacked.rglob("tiny.py")))]
    assert str(tree) not in (unpacked / HOME / "pyvenv.cfg").read_text()

    assert (control / "conffiles").read_text() == "/etc/logrotate.d/explsched\n"
    assert not (unpacked / "etc/explsched").exists(), "dpkg would ask about the admin's file at upgrades"
    checked = subprocess.run(["md5sum", "--check", "--quiet", control / "md5sums"], cwd=unpacked, check=False)
    assert checked.returncode == 0
    major, minor = sys.version_info[:2]
    depends = run("dpkg-deb", "-f", package, "Depends").stdout
    assert f"python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1}), slurm-client (>= 22.05)" in depends
    for script in ("postinst", "prerm", "postrm"):
        assert (control / script).stat().st_mode & 0o777 == 0o755
        assert run("sh", "-n", control / script).returncode == 0


def test_a_file_that_names_the_place_it_was_made_in_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / HOME / "setting").write_text(f"path = {tree}/{HOME}\n")
    done = run(SCRIPTS / "package-tree", tree, tmp_path)
    assert done.returncode == 1
    assert f"{HOME}/setting" in done.stderr
    assert not list(tmp_path.glob("*.deb"))


def test_each_state_of_a_checkout_is_a_newer_version(tree: Path, tmp_path: Path) -> None:
    """Apt does not install what has the version that is installed; a tagged release has no suffix."""
    checkout = tmp_path / "checkout"
    shutil.copytree(SCRIPTS / "debian", checkout / "scripts/debian")
    shutil.copy(SCRIPTS / "package-tree", checkout / "scripts")

    def git(*argv: str, at: str = "now") -> None:
        command = ["git", "-C", checkout, "-c", "user.name=x", "-c", "user.email=x", *argv]
        subprocess.run(command, env={**os.environ, "GIT_COMMITTER_DATE": at}, check=True)

    def built() -> str:
        assert run(checkout / "scripts/package-tree", tree, tmp_path).returncode == 0
        (package,) = tmp_path.glob("*.deb")
        version = run("dpkg-deb", "-f", package, "Version").stdout.strip()
        package.unlink()
        return version

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x", at="2026-11-23T23:30:00+1400")
    git("tag", "v1.2")
    versions = [built()]
    assert re.fullmatch(r"1\.2\+deb[^.+]+", versions[0])
    git("commit", "-qm", "x", "--allow-empty", at="2026-11-23T10:00:00+0000")
    versions.append(built())
    assert versions[1].startswith("1.2+git20261123100000.")
    assert built() == versions[1]
    (checkout / "edited").touch()
    versions.append(built())
    git("add", ".")
    git("commit", "-qm", "x", at="2026-11-23T05:00:01-0500")
    versions.append(built())
    for older, newer in pairwise(versions):
        assert run("dpkg", "--compare-versions", older, "lt", newer).returncode == 0, (older, newer)


@pytest.mark.parametrize(("script", "occasion"), [("postinst", "abort-upgrade"), ("prerm", "upgrade")])
def test_maintainer_scripts_do_nothing_on_other_occasions(script: str, occasion: str) -> None:
    done = subprocess.run([SCRIPTS / "debian" / script, occasion], env={"PATH": ""}, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def maintain(machine: Path, script: str, *argv: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a maintainer script on the directories of a machine that is made up."""
    text = (SCRIPTS / "debian" / script).read_text()
    for top in ("/etc/", "/run/", "/usr/", "/var/"):
        text = text.replace(top, f"{machine}{top}")
    words = ["/bin/sh", "-c", text, script, *argv]
    environment = {"PATH": f"{path}:/usr/bin:/bin"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def stubs(directory: Path, **ends: int) -> Path:
    """Commands that do nothing, with these exit statuses."""
    directory.mkdir()
    for name, end in ends.items():
        command = directory / name.replace("_", "-")
        command.write_text(f'#!/bin/sh\necho "{command.name} $*: refused" >&2\nexit {end}\n')
        command.chmod(0o755)
    return directory


def test_the_configuration_is_put_in_place_once_and_is_the_admins_until_purge(tmp_path: Path) -> None:
    """No upgrade asks about it, resets it, or brings it back, as dpkg would not bring back a conffile."""
    path = stubs(tmp_path / "bin", systemd_sysusers=0, systemd_tmpfiles=0)
    example, config = tmp_path / "usr/share/explsched/explsched.yaml", tmp_path / "etc/explsched/explsched.yaml"
    example.parent.mkdir(parents=True)
    example.write_text("# policy: explsched\n")
    for installed, before, after in (
        ("", None, "# policy: explsched\n"),
        ("", "policy: srsf\n", "policy: srsf\n"),
        ("0.1.0", "policy: srsf\n", "policy: srsf\n"),
        ("0.1.0", None, None),
    ):
        config.unlink(missing_ok=True)
        if before:
            config.write_text(before)
        done = maintain(tmp_path, "postinst", "configure", installed, path=path)
        assert done.returncode == 0
        assert (f"no {config}, so no daemon starts" in done.stderr) is (after is None)
        assert (config.read_text() if config.exists() else None) == after
    for occasion, kept in (("remove", True), ("purge", False)):
        config.write_text("policy: srsf\n")
        config.with_name("explsched.yaml.dpkg-old").touch()
        assert maintain(tmp_path, "postrm", occasion, path=path).returncode == 0
        assert config.exists() is config.parent.exists() is kept


def test_purge_is_complete_also_where_a_directory_cannot_be_removed(tmp_path: Path) -> None:
    """The spool or the log may be a mount, or on a file system on which root of this host may not remove anything."""
    spool = tmp_path / "var/spool/explsched/progress"
    spool.mkdir(parents=True)
    for fails in ("rmdir", "rm"):
        path = stubs(tmp_path / f"no-{fails}", **{fails: 1})
        assert maintain(tmp_path, "postrm", "purge", path=path).returncode == 0
        assert spool.exists() is (fails == "rmdir")


def test_an_installation_with_pip_that_comes_first_is_told(tmp_path: Path) -> None:
    """Its unit and commands in /usr/local win, and upgrades of the package would change nothing."""
    path = stubs(tmp_path / "bin", systemd_sysusers=0, systemd_tmpfiles=0, install=0)
    assert "comes before" not in maintain(tmp_path, "postinst", "configure", "", path=path).stderr
    for name in ("usr/local/lib/systemd/system/sexplschedd.service", "usr/local/bin/sexplschedd"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
        done = maintain(tmp_path, "postinst", "configure", "", path=path)
        assert (done.returncode, f"{tmp_path / name} comes before the package's" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    ("fails", "status", "words"),
    [
        ("systemctl", 1, "the daemon did not start again: see sexplsched config check"),
        ("systemd-tmpfiles", 73, "the spool is not as it should be: see sexplsched doctor"),
    ],
)
def test_an_upgrade_is_complete_also_if_not_all_is_well(tmp_path: Path, fails: str, status: int, words: str) -> None:
    """The new version may refuse a key, and the spool be on a file system that root of another host may not change.

    dpkg would call the package half configured for ever.
    """
    ends = {"systemd-sysusers": 0, "systemd-tmpfiles": 0, "systemctl": 0, fails: status}
    for name, end in ends.items():
        (tmp_path / name).write_text(f'#!/bin/sh\n[ "$1" = daemon-reload ] || exit {end}\n')
        (tmp_path / name).chmod(0o755)
    text = (SCRIPTS / "debian/postinst").read_text().replace("/run/systemd/system", str(tmp_path))
    argv = ["/bin/sh", "-c", text, "postinst", "configure", "0.1.0"]
    done = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert words in done.stderr


def test_removal_stops_the_daemon_and_the_services_beside_it(tmp_path: Path) -> None:
    """Those of page and state that the docs have sites make would run on without their files."""
    (tmp_path / "systemctl").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "systemctl").chmod(0o755)
    text = (SCRIPTS / "debian/prerm").read_text().replace("/run/systemd/system", str(tmp_path))
    done = subprocess.run(["/bin/sh", "-c", text, "prerm", "remove"], env={"PATH": str(tmp_path)}, capture_output=True)
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == ["stop sexplsched*.service", "--quiet disable sexplschedd.service"]

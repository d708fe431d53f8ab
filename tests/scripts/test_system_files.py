"""scripts/system-files leaves a machine as it should be, and keeps what an admin has changed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slurm_plugin.config import Config, parse

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = Path(sys.prefix)
OPERATION = REPOSITORY / "docs/operation.md"
CONFIG = "etc/explsched/explsched.yaml"
ROTATION = "etc/logrotate.d/explsched"
COMPLETION = "usr/share/bash-completion/completions"
PROGRAMS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]


def system_files(*words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [REPOSITORY / "scripts/system-files", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, umask=0o077)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    done = system_files(ENVIRONMENT, "/usr", "/opt/explsched/bin", root)
    assert (done.returncode, done.stderr) == (0, "")
    assert [f"/{name}" for name in sorted(files(root))] == sorted(done.stdout.split())
    return root


def files(root: Path) -> dict[str, bytes]:
    """What is there, by name: the content of files, and where links lead."""
    return {
        str(path.relative_to(root)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def imported(root: Path) -> list[str]:
    """What a training's Python, which has no packages, finds where the docs tell it to look."""
    code = "import explsched, wrappers; explsched.report; print(explsched.__file__, wrappers.__file__)"
    environment = {"PYTHONPATH": str(root / "usr/share/explsched/python")}
    argv = [sys.executable, "-S", "-P", "-c", code]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout.split()


def with_our_packages(environment: Path) -> Path:
    """A new environment that finds the packages of ours, and has the commands that say their completion."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], umask=0o022, check=True)
    (ours,) = environment.glob("lib/python*/site-packages")
    theirs = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (ours / "theirs.pth").write_text(f"import site; site.addsitedir({str(theirs)!r})\n")
    for name in ("sexplsched", "sexplschedd"):
        (environment / "bin" / name).symlink_to(ENVIRONMENT / "bin" / name)
    return environment


def complete(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    offer = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $(complete -p "$1" | sed "s/.* -F \\([^ ]*\\) .*/\\1/") "$1"'
    code = f'{script}\n{offer}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_all_that_a_machine_needs_is_there_and_readable(machine: Path) -> None:
    found = files(machine)
    for name in (
        ROTATION,
        "usr/lib/systemd/system/sexplschedd.service",
        "usr/lib/sysusers.d/explsched.conf",
        "usr/lib/tmpfiles.d/explsched.conf",
        "usr/share/explsched/job_submit.lua",
        "usr/share/explsched/explsched.yaml",
        "usr/share/man/man5/explsched.yaml.5",
        "usr/share/man/man8/sexplschedd.8",
        *(f"usr/share/man/man1/{name}.1" for name in PROGRAMS if name != "sexplschedd"),
        *(f"{COMPLETION}/{name}" for name in PROGRAMS),
    ):
        assert found[name], name
        assert (machine / name).stat().st_mode & 0o777 == 0o644
        assert (machine / name).parent.stat().st_mode & 0o777 == 0o755
    assert parse(found[CONFIG].decode(), Path(CONFIG)) == Config()


def test_the_unit_starts_the_daemon_where_it_is(machine: Path) -> None:
    unit = (machine / "usr/lib/systemd/system/sexplschedd.service").read_text()
    assert "\nExecStart=/opt/explsched/bin/sexplschedd --config" in unit


def test_trainings_can_import_explsched_and_nothing_else_of_ours(machine: Path) -> None:
    place = machine / "usr/share/explsched/python"
    assert imported(machine) == [str(place / name / "__init__.py") for name in ("explsched", "wrappers")]
    assert {path.name for path in place.iterdir()} == {"explsched", "wrappers"}


def test_a_root_with_the_environment_in_it_can_be_moved(tmp_path: Path) -> None:
    """As that of the Debian package."""
    root = tmp_path / "made"
    environment = with_our_packages(root / "usr/lib/explsched")
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in ("explsched", "wrappers"):
        shutil.copytree(REPOSITORY / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert system_files(environment, "/usr", "/usr/bin", root).returncode == 0
    root.rename(tmp_path / "moved")
    assert len(imported(tmp_path / "moved")) == 2


def test_a_second_time_replaces_our_files_and_keeps_those_of_the_admin(tmp_path: Path) -> None:
    words = (ENVIRONMENT, "/usr", "/usr/bin", tmp_path)
    first = system_files(*words).stdout.split()
    fresh = files(tmp_path)
    (tmp_path / CONFIG).write_text("policy: srsf\n")
    (tmp_path / ROTATION).write_text("mine\n")
    (tmp_path / "usr/lib/sysusers.d/explsched.conf").write_text("old\n")
    done = system_files(*words)
    assert set(first) - set(done.stdout.split()) == {f"/{CONFIG}", f"/{ROTATION}"}
    assert f"note: /{ROTATION} is kept as it is" in done.stderr
    assert files(tmp_path) == {**fresh, CONFIG: b"policy: srsf\n", ROTATION: b"mine\n"}


def test_the_documented_removal_leaves_what_is_in_etc(machine: Path, tmp_path: Path) -> None:
    """It is the admin's, or that of a package that is there by then: dpkg does not bring back a file in /etc."""
    done = re.search(r"`(sort -u) /opt/explsched/files (\|.*) \| xargs rm -f`", OPERATION.read_text())
    assert done
    written = {f"/{name}" for name in files(machine)}
    (tmp_path / "files").write_text("\n".join((*written, *written)) + "\n")
    removed = subprocess.check_output(["sh", "-c", f"{done[1]} files {done[2]}"], cwd=tmp_path, text=True).split()
    assert written - set(removed) == {f"/{CONFIG}", f"/{ROTATION}"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Usage: scripts/system-files ENVIRONMENT"),
        ((ENVIRONMENT, "usr"), "usr: must be absolute, such as /usr/local"),
        ((ENVIRONMENT, "/usr", "bin"), "bin: must be absolute, such as /usr/local"),
        ((ENVIRONMENT, "/usr", "/home/me/bin"), "/home/me/bin: the service sees no home directories"),
        (("/usr/share", "/usr", "/usr/bin"), "/usr/share: explsched and shtab are not there"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, words: tuple[str | Path, ...], message: str) -> None:
    refused = system_files(*words, *([tmp_path] if len(words) == 3 else []))
    assert refused.returncode == 2
    assert message in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_python_in_a_home_directory_is_refused(tmp_path: Path) -> None:
    """As of an environment made by root's own python3, where that is one of pyenv, conda or uv."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/root/python3")
    refused = system_files(tmp_path)
    assert refused.returncode == 2
    assert f"{tmp_path}/bin/python: is /root/python3, which the service does not see" in refused.stderr


def test_a_root_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    refused = system_files(ENVIRONMENT, "/usr", "/usr/bin", tmp_path / "imgae")
    assert (refused.returncode, list(tmp_path.iterdir())) == (2, [])
    assert f"{tmp_path}/imgae: no such directory" in refused.stderr


def test_an_environment_that_the_service_cannot_read_is_told(tmp_path: Path) -> None:
    """As pip leaves it under root's umask 077."""
    environment = with_our_packages(tmp_path / "environment")
    (ours,) = environment.glob("lib/python*/site-packages")
    words = (environment, "/usr", "/usr/bin", tmp_path)
    assert system_files(*words).stderr == ""
    (ours / "theirs.pth").chmod(0o600)
    said = system_files(*words).stderr
    assert (
        said
        == f"note: {ours}/theirs.pth is closed to the service and to users (umask?): chmod -R go+rX {environment}\n"
    )


def test_bash_completes_options_and_choices_of_wrappers(machine: Path) -> None:
    script = (machine / COMPLETION / "sxbatch").read_text()
    assert complete(script, "sxbatch", "--swe") == ["--sweep"]
    assert complete(script, "sxbatch", "--direction", "m") == ["min", "max"]
    assert complete(script, "sxbatch", "--", "--swe") == []


def test_completions_of_wrappers_live_in_one_shell(machine: Path) -> None:
    script = "\n".join((machine / COMPLETION / name).read_text() for name in ("sxbatch", "sxreport", "sxrun"))
    assert complete(script, "sxbatch", "--swe") == ["--sweep"]
    assert complete(script, "sxrun", "--log-r") == ["--log-regex"]


@pytest.mark.parametrize("name", ["sexplsched", "sexplschedd"])
def test_click_completes_its_own_commands(machine: Path, name: str) -> None:
    script = (machine / COMPLETION / name).read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert f"_{name.upper()}_COMPLETE=bash_complete" in script
    assert f"complete -o nosort -F _{name}_completion {name}" in script

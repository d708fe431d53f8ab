"""API keys from the command line: made, saved, listed, taken back."""

import errno
import fcntl
import getpass
import json
import os
import pwd
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inference_gateway import key_file
from inference_gateway.cli.key import key
from inference_gateway.dataplane.settings import digest_of

COMMENT = "# who may\nkeys:\n  carol:   # the first\n    sha256: " + 64 * "c" + "\n    services: [chat]\n"


@pytest.fixture
def services(tmp_path: Path) -> Path:
    path = tmp_path / "services.yaml"
    path.write_text("listen: {keys: keys.yaml}\nservices: {chat: {replica: {command: 'x {port}'}}}\n")
    return path


def run(*argv: object) -> Result:
    return CliRunner().invoke(key, [str(word) for word in argv])


def test_a_key_is_added_to_the_file_and_saved_for_its_owner_alone(services: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(COMMENT)
    secret = tmp_path / "secret"
    done = run("alice", "-s", services, "--save", secret, "--expires", 30)
    assert done.exit_code == 0, done.output
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text().strip() not in done.output
    assert file.read_text().startswith(COMMENT)
    added = key_file.sections(file)["alice"]
    assert added.sha256 == digest_of(secret.read_text().strip())
    assert added.expires == date.today() + timedelta(days=30)


def test_the_first_key_makes_the_file(services: Path, tmp_path: Path) -> None:
    done = run("--me", "-s", services)
    assert done.exit_code == 0, done.output
    (known,) = key_file.load(tmp_path / "keys.yaml")
    assert known.name == getpass.getuser()
    assert (tmp_path / "keys.yaml").stat().st_mode & 0o777 == 0o600
    assert known.digest in {digest_of(word) for word in done.output.split()}


def test_nothing_is_saved_or_changed_where_there_is_a_key_already(services: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(COMMENT)
    done = run("carol", "-s", services, "--save", tmp_path / "secret")
    assert "carol has a key already" in str(done.exception)
    assert not (tmp_path / "secret").exists()
    (tmp_path / "secret").touch()
    assert "File exists" in str(run("dave", "-s", services, "--save", tmp_path / "secret").exception)
    assert (tmp_path / "keys.yaml").read_text() == COMMENT


def test_whoever_gets_a_name_is_told_of_the_files_of_its_former_key(services: Path, tmp_path: Path) -> None:
    services.write_text(services.read_text() + "directory: state\n")
    assert "batches" not in run("alice", "-s", services).stderr
    assert run("alice", "-s", services, "--revoke").stderr == "", "it had no files"
    theirs = tmp_path / "state" / "batches" / "alice"
    theirs.mkdir(parents=True)
    told = f"files and batches of earlier keys of this name stay in {theirs}; a new one sees them\n"
    assert run("alice", "-s", services).stderr.endswith(told)
    taken_back = run("alice", "-s", services, "--revoke")
    assert (taken_back.stderr, taken_back.exit_code) == (told, 0)
    assert "batches" not in run("bob", "-s", services).stderr
    assert "batches" not in run("alice").stderr, "the key of no gateway that is known"


def test_where_a_gateway_is_another_users_its_keys_change_all_the_same(
    services: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.write_text(services.read_text() + "directory: state\n")
    theirs, is_dir = tmp_path / "state" / "batches" / "alice", Path.is_dir

    def closed(path: Path) -> bool:
        if path == theirs:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", closed)
    for words in ((), ("--revoke",)):
        done = run("alice", "-s", services, *words)
        assert done.exit_code == 0, done.output
        assert done.stderr.endswith(f"{theirs}: Permission denied: a new key would see what may be there\n")


def test_a_key_is_taken_back(services: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(COMMENT)
    for owner in ("alice", "bob"):
        run(owner, "-s", services)
    assert run("alice", "-s", services, "--revoke").exit_code == 0
    assert list(key_file.sections(file)) == ["carol", "bob"]
    assert file.read_text().startswith(COMMENT)
    for owner in ("carol", "bob"):
        assert run(owner, "-s", services, "--revoke").exit_code == 0
    assert key_file.sections(file) == {}
    assert "bob has no key" in str(run("bob", "-s", services, "--revoke").exception)
    assert run("bob", "-s", services).exit_code == 0, "an empty file takes keys again"
    file.write_text("keys: {a: {sha256: " + 64 * "a" + "}, b: {sha256: " + 64 * "b" + "}}\n")
    assert "by hand" in str(run("a", "-s", services, "--revoke").exception)


@pytest.mark.parametrize("members", ["keys:\n  # of the course\n  alice: {ALICE}\n", "keys: {alice: {ALICE}}\n"])
def test_comments_outlive_the_last_key(tmp_path: Path, members: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("# Ask Ada first.\n" + members.replace("ALICE", f"sha256: {'a' * 64}") + "# end\n")
    key_file.revoke(path, "alice")
    assert key_file.sections(path) == {}
    key_file.add(path, "bob", key_file.new_key("bob")[1])
    assert list(key_file.sections(path)) == ["bob"]
    kept = [line.strip() for line in path.read_text().splitlines() if "#" in line]
    assert kept == ["# Ask Ada first.", *(["# of the course"] if "#" in members else []), "# end"]


def test_comments_after_a_key_that_is_taken_back_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    keys = "".join(f"  {name}:\n    sha256: {name * 64}\n\n  # after {name}\n" for name in "ab")
    path.write_text(f"keys:\n{keys}")
    key_file.revoke(path, "a")
    assert list(key_file.sections(path)) == ["b"]
    key_file.revoke(path, "b")
    assert key_file.sections(path) == {}
    assert [line.strip() for line in path.read_text().splitlines() if "#" in line] == ["# after a", "# after b"]


BOB = f"bob:\n    sha256: {64 * 'b'}\n"


@pytest.mark.parametrize("members", [BOB, f"bob: &b {{sha256: {64 * 'b'}}}\n"])
@pytest.mark.parametrize(
    "alice",
    [
        f"alice:\n    sha256: {64 * 'a'}\n    priority: batch",
        f"alice: {{sha256: {64 * 'a'},\n    priority: batch}}\n",
        f"alice:\n    {{sha256: {64 * 'a'}, priority: batch}}",
    ],
)
def test_a_key_is_taken_back_whole(tmp_path: Path, members: str, alice: str) -> None:
    """Also one that ends without a line break, or within braces over two lines."""
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  {members}  {alice}")
    key_file.revoke(path, "alice")
    assert path.read_text() == f"keys:\n  {members}"
    path.write_text(f"keys:\n  {alice}")
    key_file.revoke(path, "alice")
    assert path.read_text() == "keys: {}\n"


def test_a_key_is_indented_as_those_before(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n    bob: {{sha256: {64 * 'b'}}}\n")
    key_file.add(path, "carol", key_file.new_key("carol")[1])
    assert list(key_file.sections(path)) == ["bob", "carol"]


@pytest.mark.parametrize(
    "text",
    [
        f"keys: {{alice: {{sha256: {64 * 'a'}}},\n  bob: {{sha256: {64 * 'b'}}}}}\n",
        f"keys:\n  alice: {{sha256: {64 * 'a'}}}\n  <<: {{bob: {{sha256: {64 * 'b'}}}}}\n...\n",
    ],
)
def test_a_file_whose_layout_is_not_foreseen_is_left_alone(services: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    for words in (("carol",), ("bob", "--revoke")):
        told = f"{tmp_path}/keys.yaml: its layout allows no change of {words[0]} alone; edit the file by hand"
        assert str(run(*words, "-s", services).exception) == told
        assert (tmp_path / "keys.yaml").read_text() == text


@pytest.mark.parametrize("words", [("alice",), ("carol", "--revoke")])
def test_who_changes_the_file_waits_for_others_who_do(services: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(COMMENT)
    bob = key_file.new_key("bob")[1]
    with ThreadPoolExecutor(1) as pool, (tmp_path / "keys.yaml.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = pool.submit(run, *words, "-s", services)
        waits = re.compile(rf"-> FLOCK .* {os.getpid()} .*:{os.fstat(lock.fileno()).st_ino} ")
        while not done.done() and not waits.search(Path("/proc/locks").read_text()):
            time.sleep(0.01)
        file.write_text(f"{COMMENT}{bob}\n")
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert done.result().exit_code == 0
    assert list(key_file.sections(file)) == (["bob"] if "--revoke" in words else ["carol", "bob", "alice"])


def test_who_may_use_the_file_may_do_so_afterwards(services: Path, tmp_path: Path) -> None:
    """Such as the user of the gateway, if root adds a key; and a link still leads to the file that others share."""
    file = tmp_path / "shared.yaml"
    file.write_text(COMMENT)
    file.chmod(0o640)
    owner = (4711, 4712) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(file, *owner)
    (tmp_path / "keys.yaml").symlink_to(file)
    for words in (("alice",), ("alice", "--revoke")):
        done = run(*words, "-s", services)
        assert done.exit_code == 0, done.output
        for path in (file, tmp_path / "shared.yaml.lock"):
            found = path.stat()
            assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (*owner, 0o640)
    assert (tmp_path / "keys.yaml").readlink() == file


def test_without_locks_the_file_stays_as_it_is(services: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    done = run("alice", "-s", services)
    assert str(done.exception) == f"{tmp_path}/keys.yaml.lock: cannot be locked with flock: Function not implemented"
    assert not (tmp_path / "keys.yaml").exists()


def test_keys_are_listed(services: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(COMMENT)
    shown = run("--list", "-s", services).output
    assert re.search(r"^carol .* chat$", shown, re.MULTILINE)
    told = run("--list", "--json", "-s", services).output
    assert json.loads(told)["carol"].items() >= {"user": "carol", "services": ["chat"], "expires": None}.items()
    assert 64 * "c" not in shown + told
    assert run("alice", "--json", "-s", services).exit_code == 2


@pytest.mark.parametrize("login", ["CORP\\alice", "CORP+alice", "-CORP alice$"])
def test_a_login_that_is_no_name_of_a_key_is_made_one(
    services: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    user = pwd.struct_passwd((login, "x", os.getuid(), 0, "", "/", "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda _uid: user)
    assert run("--me", "-s", services).exit_code == 0
    (known,) = key_file.load(tmp_path / "keys.yaml")
    assert known.name == "CORP.alice"


def test_a_key_beside_that_of_a_login_names_its_user_and_account(services: Path, tmp_path: Path) -> None:
    assert run("nightly", "--me", "--account", "0042", "-s", services).exit_code == 0
    assert run("77", "-A", "physics", "-s", services).exit_code == 0
    found = key_file.sections(tmp_path / "keys.yaml")
    assert {name: (one.user, one.account) for name, one in found.items()} == {
        "nightly": (getpass.getuser(), "0042"),
        "77": ("", "physics"),
    }
    assert re.search(rf"^nightly +{getpass.getuser()} +0042 ", run("--list", "-s", services).output, re.MULTILINE)
    assert run("77", "--revoke", "-s", services).exit_code == 0
    assert "--account 'a b'" in str(run("eve", "--account", "a b").exception)


def test_no_line_is_printed_that_the_file_of_keys_may_not_have() -> None:
    assert "accepted are letters" in str(run("CORP\\alice").exception)


def test_without_a_services_file_the_line_is_printed(tmp_path: Path) -> None:
    done = run("alice")
    assert "  alice: {sha256: " in done.output
    assert run("--list").exit_code == run().exit_code == 2

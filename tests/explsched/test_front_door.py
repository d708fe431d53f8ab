"""What `import explsched` gives a training, and what it costs."""

import subprocess
import sys

import pytest

import explsched


def test_exported_members_are_there_and_nothing_else_is_public() -> None:
    assert set(explsched.__all__) == {"CheckpointSignal", "atomic_write", "event", "report"}
    assert set(explsched.__all__) <= set(dir(explsched))
    for name in explsched.__all__:
        assert getattr(explsched, name).__name__ == name


def test_an_unknown_member_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'reprot'"):
        explsched.reprot  # noqa: B018  the access is what is tested


def loaded_by(statement: str) -> set[str]:
    """Top-level modules outside the standard library that a fresh interpreter has loaded after a statement."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names


def test_the_front_door_loads_the_standard_library_only() -> None:
    assert loaded_by("import explsched") == {"explsched"}
    assert loaded_by("from explsched import CheckpointSignal, atomic_write, event, report") == {"explsched"}

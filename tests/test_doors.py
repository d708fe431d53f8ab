"""Which package may import which part of which other, exactly; no circles of folders; nothing imported by name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "benchmarks",
    "explsched",
    "inference_gateway",
    "kernel_intercept",
    "sbatch_templates",
    "sched_policy",
    "simulation",
    "slurm_plugin",
    "testkit",
    "wrappers",
)
# What each package imports of the others: an entry that nobody uses any more is as wrong as one that is missing.
DOORS: Mapping[str, frozenset[str]] = {
    "explsched": frozenset(),
    "sbatch_templates": frozenset(),
    "sched_policy": frozenset({"explsched.entry_points", "explsched.errors"}),
    "kernel_intercept": frozenset({"explsched.atomic_file", "explsched.errors"}),
    "wrappers": frozenset(
        {
            "explsched.batch_script",
            "explsched.checkpoint",
            "explsched.errors",
            "explsched.job_options",
            "explsched.launchers",
            "explsched.parameters",
            "explsched.process_signals",
            "explsched.progress",
            "sbatch_templates",
        }
    ),
    "slurm_plugin": frozenset(
        {
            "explsched.atomic_file",
            "explsched.cli",
            "explsched.errors",
            "explsched.interpreter",
            "explsched.job_options",
            "explsched.log",
            "explsched.parameters",
            "explsched.preemption_record",
            "explsched.process",
            "explsched.spool",
            "explsched.strict_yaml",
            "explsched.tables",
            "kernel_intercept.profile",
            "sched_policy.backfill",
            "sched_policy.catalog",
            "sched_policy.checked",
            "sched_policy.curves",
            "sched_policy.model",
            "sched_policy.order",
            "sched_policy.place",
            "sched_policy.plan",
            "sched_policy.policy",
            "sched_policy.profile",
            "sched_policy.queue_order",
            "sched_policy.snapshot",
            "sched_policy.sweep",
            "sched_policy.utility",
            "wrappers.kernel_manager",
            "wrappers.mps",
            "wrappers.sxbatch",
            "wrappers.sbatch_options",
            "wrappers.template",
        }
    ),
    "inference_gateway": frozenset(
        {
            "explsched.atomic_file",
            "explsched.cli",
            "explsched.entry_points",
            "explsched.errors",
            "explsched.interpreter",
            "explsched.job_options",
            "explsched.log",
            "explsched.process",
            "explsched.strict_yaml",
            "explsched.tables",
            "sbatch_templates",
            "slurm_plugin.client",
        }
    ),
    "simulation": frozenset(
        {
            "explsched.atomic_file",
            "explsched.cli",
            "explsched.errors",
            "explsched.preemption_record",
            "explsched.tables",
            "inference_gateway.errors",
            "inference_gateway.model",
            "inference_gateway.queueing",
            "inference_gateway.scaling",
            "sched_policy.backfill",
            "sched_policy.catalog",
            "sched_policy.checked",
            "sched_policy.curves",
            "sched_policy.group",
            "sched_policy.order",
            "sched_policy.model",
            "sched_policy.improvement",
            "sched_policy.place",
            "sched_policy.plan",
            "sched_policy.policies",
            "sched_policy.policy",
            "sched_policy.profile",
            "sched_policy.queue_order",
            "sched_policy.snapshot",
            "sched_policy.sweep",
            "sched_policy.utility",
            "slurm_plugin.client",
            "slurm_plugin.config",
            "slurm_plugin.observation",
            "slurm_plugin.steering",
        }
    ),
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES)


def imports(graph: grimp.ImportGraph) -> Iterable[tuple[str, str]]:
    return ((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))


def test_doors_are_exact(graph: grimp.ImportGraph) -> None:
    used: dict[str, set[str]] = {package: set() for package in DOORS}
    for one, other in imports(graph):
        package = one.split(".")[0]
        if package in DOORS and other.split(".")[0] != package:
            used[package].add(".".join(other.split(".")[:2]))
    assert used == DOORS


def test_no_circles_of_folders_at_any_depth(graph: grimp.ImportGraph) -> None:
    """In every folder its files and folders, taken as wholes, import each other in one direction only."""
    arrows: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one, other in imports(graph):
        first, second = one.split("."), other.split(".")
        depth = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        if depth is not None:
            arrows[".".join(first[:depth])][first[depth]].add(second[depth])
    circles = {folder: circle for folder, edges in arrows.items() if (circle := _circle(edges))}
    assert not circles


def _circle(edges: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Nodes that cannot be put in order: those left when leaves are taken away again and again."""
    left = {node: set(targets) for node, targets in edges.items()}
    while leaves := [node for node, targets in left.items() if not any(target in left for target in targets)]:
        for leaf in leaves:
            del left[leaf]
    return tuple(sorted(left))


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ("a", "b", "c", "d")
    assert _circle({"a": {"b", "c"}, "b": {"c"}}) == ()


@pytest.mark.parametrize(("here", "there"), [("tests", "benchmarks"), ("benchmarks", "tests")])
def test_tests_and_benchmarks_import_neither_each_other(here: str, there: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / here).rglob("*.py")
        for name in _imported(path)
        if name.split(".")[0] == there
    }
    assert not found


def test_nothing_is_imported_by_name_outside_entry_points() -> None:
    """Names that people type become code through explsched/entry_points.py, which needs neither of the two."""
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if _imports_by_name(path)
    }
    assert not found


def _imports_by_name(path: Path) -> bool:
    """Whether a file mentions what loads modules by name."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    mentioned = {node.id for node in tree if isinstance(node, ast.Name)}
    mentioned |= {node.attr for node in tree if isinstance(node, ast.Attribute)}
    return bool(mentioned & {"import_module", "__import__"})


def _imported(path: Path) -> Iterable[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_tests_use_what_is_public() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks" / "tests").rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if _reaches_inside(path)}
    assert not found


def _reaches_inside(path: Path) -> bool:
    """Whether a test reads, imports or replaces a private name of another object or module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if _is_private(node.attr) and not is_own:
                return True
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            if any(_is_private(alias.name) for alias in node.names):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if any(_is_private(text.rpartition(".")[2]) for text in texts):
                return True
    return False


def _is_private(name: str) -> bool:
    """Names with one leading underscore, but for those that the standard library makes public."""
    return (
        name.startswith("_") and not name.startswith("__") and name not in ("_replace", "_asdict", "_fields", "_exit")
    )

"""Lets `sxrun --measure-stages` count inside the trainings that it runs.

Python imports this file at its start, since `sxrun` puts its directory first in PYTHONPATH; a sitecustomize of the site
is imported after it. PyTorch is not imported: its modules are given hooks, those of `_explsched_stages`, when the
training imports them. Programs without PyTorch load this file and no more.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib would slow down every start
_HOOKED = frozenset(
    {
        "torch.optim.optimizer",
        "torch.utils.data.dataloader",
        "torch.utils.data._utils.fetch",
        "torch.distributed.distributed_c10d",
        "torch.nn.parallel.distributed",
    }
)
_STAGES = "_explsched_stages"


def _load_stages() -> ModuleType:
    """The file beside this one; the program may have taken its directory from `sys.path`."""
    spec = importlib.util.spec_from_file_location(_STAGES, os.path.join(_HERE, f"{_STAGES}.py"))  # noqa: PTH118
    if spec is None or spec.loader is None:
        raise ImportError(f"no {_STAGES}.py in {_HERE}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_STAGES] = module
    return module


class _Hooking(importlib.abc.Loader):
    """Loads a module as its own loader does, and then gives it a hook."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        try:
            stages = sys.modules.get(_STAGES) or _load_stages()
        except Exception as error:  # a Python too old to read it; the training goes on
            sys.__excepthook__(type(error), error, error.__traceback__)
        else:
            stages.hook(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that get hooks, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _HOOKED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Hooking(spec.loader)
                return spec
        return None


def _import_next() -> None:
    """Import the sitecustomize that Python would have found without this one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.path.isdir(os.environ.get("EXPLSCHED_STAGES_DIRECTORY", "")):  # noqa: PTH112
    sys.meta_path.insert(0, _Finder())
_import_next()

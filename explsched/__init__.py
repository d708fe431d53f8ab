"""explsched in a training: report progress, and save a checkpoint when asked.

    import explsched

    with explsched.CheckpointSignal() as checkpoint:
        for step in range(start, steps):
            loss = train(step)
            explsched.report(step=step, loss=loss, total_steps=steps)
            if checkpoint.requested:
                explsched.atomic_write(path, save_to)
                checkpoint.saved(step)

The import is cheap: standard library only, and each name is loaded when it is first used. Outside a Slurm job all
calls work and do nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import would cost more than all the rest
if TYPE_CHECKING:
    from explsched.atomic_file import atomic_write
    from explsched.checkpoint import CheckpointSignal
    from explsched.progress import event, report

__all__ = ["CheckpointSignal", "atomic_write", "event", "report"]


def __getattr__(name: str) -> object:
    """The exported members, loaded at their first use (PEP 562)."""
    if name in ("event", "report"):
        from explsched import progress

        return getattr(progress, name)
    if name == "CheckpointSignal":
        from explsched.checkpoint import CheckpointSignal

        return CheckpointSignal
    if name == "atomic_write":
        from explsched.atomic_file import atomic_write

        return atomic_write
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

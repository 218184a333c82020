"""Operations of which some steps wait for the disk and others belong to the owner's thread.

Such an operation is a generator that runs on the owner's thread. It yields a function for each step
that waits for the disk; the driver calls it, in another thread or not, and sends its result back,
or throws what it raised into the generator:

    def remove(log: Log) -> Steps[int]:
        removed = plan(log)                          # owner's thread
        yield lambda: fs.sync_directory(log.path)    # any thread
        log.set_segments(...)                        # owner's thread
        return len(removed)

While a step waits, the owner's thread does other work, and the log may change or be deleted: after
each `yield` the generator checks that what it found before still holds. A long computation on the
owner's thread yields `let_others_work` now and then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[Callable[[], Any], Any, Result]


def let_others_work() -> None:
    """A step that ends a turn of the owner's thread, and does nothing else."""


class _NextTurn:
    """Awaited in a task: resume in the event loop's next turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def run_here(steps: Steps[Result]) -> Result:
    """Run all steps in the calling thread, the owner's. Blocks."""
    return _drive(steps, lambda action: action())


def run_from_thread(steps: Steps[Result], on_owner: Callable[[Callable[[], Any]], Any]) -> Result:
    """Wait for the disk in the calling thread; `on_owner` runs the rest on the owner's."""
    return _drive(steps, on_owner)


async def run_in_thread(
    steps: Steps[Result], run_blocking: Callable[[Callable[[], Any]], Awaitable[Any]]
) -> Result:
    """From the owner's event loop: `run_blocking` calls a function in another thread."""
    resume = _sending(steps, None)
    while True:
        try:
            step = resume()
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            value = await (_NextTurn() if step is let_others_work else run_blocking(step))
        except Exception as error:  # noqa: BLE001 - the generator decides
            resume = _throwing(steps, error)
        else:
            resume = _sending(steps, value)


def _drive(steps: Steps[Result], on_owner: Callable[[Callable[[], Any]], Any]) -> Result:
    resume = _sending(steps, None)
    while True:
        is_over, step = on_owner(_guarded(resume))
        if is_over:
            result: Result = step
            return result
        try:
            value = step()
        except Exception as error:  # noqa: BLE001 - the generator decides
            resume = _throwing(steps, error)
        else:
            resume = _sending(steps, value)


def _guarded(resume: Callable[[], Any]) -> Callable[[], tuple[bool, Any]]:
    """StopIteration cannot pass through a future: say whether the generator has ended."""

    def run() -> tuple[bool, Any]:
        try:
            return False, resume()
        except StopIteration as end:
            return True, end.value

    return run


def _sending(steps: Steps[Any], value: Any) -> Callable[[], Any]:
    return lambda: steps.send(value)


def _throwing(steps: Steps[Any], error: Exception) -> Callable[[], Any]:
    return lambda: steps.throw(error)

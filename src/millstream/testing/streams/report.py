"""What a failed check says: the smallest case as code, the difference as a table, the seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millstream.pipelines.spec import ONLY
from millstream.testing.streams.case import Case, as_code
from millstream.testing.streams.comparing import Difference
from millstream.testing.streams.sink import ChangedBatch


@dataclass(frozen=True)
class Failure:
    """A case, and what is wrong with it."""

    case: Case
    differences: Mapping[str, Difference]
    changed: Sequence[ChangedBatch] = ()

    def lines(self) -> Iterator[str]:
        for name, difference in self.differences.items():
            yield "" if name == ONLY else f"{name}:"
            yield from difference.lines()
        for changed in self.changed:
            yield ""
            which = "" if changed.output == ONLY else f" of {changed.output}"
            yield (
                f"batch {changed.batch_id} had other rows{which} when it was repeated after a "
                "crash: it depends on something besides its rows and its state"
            )
            yield from changed.difference.lines("only the second time", "only the first time")


def note_case(error: BaseException, case: Case) -> None:
    """Let an error say in which case it came."""
    error.add_note("\n    ".join(["it failed in this case:", *as_code(case)]))


def note_seed(error: BaseException, made_by: str, seed: int, examples: int) -> None:
    """Let an error say how to have it again."""
    error.add_note(_again(made_by, seed, examples))


@dataclass(frozen=True)
class Shrunk:
    """The smallest failure that was found, and how many tries it took."""

    failure: Failure
    tries: int


class StreamDiffers(AssertionError):
    """A pipeline, or an operator, gave another result as a stream than as a batch."""

    def __init__(
        self,
        name: str,
        shrunk: Shrunk,
        seed: int | None,
        examples: int,
        trial_code: str | None = None,
        made_by: str = "check_stream",
    ) -> None:
        self.name = name
        self.failure = shrunk.failure
        self.seed = seed
        rows, batches, faults = self.failure.case.size
        story = list(as_code(self.failure.case))
        if trial_code is not None:
            story = [trial_code, *story, "trial.check()"]
        lines = [
            f"{name} as a stream is not {name} as a batch.",
            "",
            f"The smallest case found ({_count(rows, 'row')}, "
            f"{_count(batches, 'batch', 'batches')}, {_count(faults, 'fault')}; "
            f"{_count(shrunk.tries, 'try', 'tries')} to make it smaller):",
            "",
            *(f"    {line}" for line in story),
            *(f"    {line}".rstrip() for line in self.failure.lines()),
        ]
        if seed is not None:
            lines += ["", _again(made_by, seed, examples)]
        super().__init__("\n".join(lines))


def _again(made_by: str, seed: int, examples: int) -> str:
    return (
        f"The same again: {made_by}(..., seed={seed}), or MILLSTREAM_SEED={seed} in the "
        f"environment ({_count(examples, 'example')})."
    )


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"

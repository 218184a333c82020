"""What running pipelines publish about themselves, and what operators ask of them: pure.

    topic __millstream_pipelines             written by pipelines, read by people
      about:<identity>      `About`: what the pipeline is, with its graph
      status:<identity>     `Published`: how it is doing; every few seconds
      versions:<pipeline>   `VersionsShown`: its deployed versions, and which is in force
      diff:<pipeline>       `DiffShown`: the last comparison of two versions that was asked for

    topic __millstream_pipeline_commands     written by operators, read by pipelines
      <identity>            `Command`: stop, restart or diff

Values are JSON. A reader ignores fields that it does not know, and a record that is not what it
says: anybody who may write to the topic can write anything. An identity is the pipeline's name with
its version and generation: `revenue`, `revenue@2`.

A command names the run that it is for. A copy of the topic that is restored later, or a command
that comes late, does nothing to another run.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from millstream.models import dataclass

STATUS_TOPIC = "__millstream_pipelines"
COMMANDS_TOPIC = "__millstream_pipeline_commands"
HISTORY_MS = 30 * 60_000  # of statuses: these are plotted
FORGOTTEN_MS = 7 * 24 * 3_600_000  # after that, a pipeline that has ended is not shown any more
STATUS_SETTINGS = {
    "cleanup.policy": "compact,delete",
    "min.compaction.lag.ms": str(HISTORY_MS),
    "min.cleanable.dirty.ratio": "0.2",
    "retention.ms": str(FORGOTTEN_MS),
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": str(HISTORY_MS),
}
COMMAND_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(24 * 3_600_000),
    "segment.bytes": str(1024 * 1024),
}

ABOUT, STATUS, VERSIONS, DIFF = "about:", "status:", "versions:", "diff:"
VALUE_BYTES_MAX = 512 * 1024
TEXT_MAX = 2_000

Kind = Literal["source", "step", "state", "sink", "letters"]
Action = Literal["stop", "restart", "diff"]

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A step of the graph. `name` is that of the topic or output, or of the count of dropped rows;
    `operators` are its places among the steps with state, as Spark lists these."""

    id: int
    kind: Kind
    title: str
    inputs: tuple[int, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    name: str = ""
    operators: tuple[int, ...] = ()
    grows: bool = False  # its state is never removed


@dataclass(frozen=True)
class About:
    """What a pipeline is. `does` are the actions that its process takes commands for."""

    pipeline: str
    version: str
    identity: str
    run: str
    query_id: str = ""
    description: str = ""
    output_mode: str = ""
    nodes: tuple[Node, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()  # topics of standing queries
    patterns: tuple[str, ...] = ()
    group: str = ""
    checkpoint: str = ""
    store: str = ""
    trigger: str = ""
    host: str = ""
    process: int = 0
    command: str = ""
    started_ms: int = 0
    does: tuple[Action, ...] = ()
    once: bool = False


@dataclass(frozen=True)
class SourceStatus:
    """A topic that is read; counts are of this run."""

    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    bad: int = 0


@dataclass(frozen=True)
class OperatorStatus:
    """A step with state, as Spark reports it."""

    name: str
    rows: int = 0
    bytes: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class OutputStatus:
    """Rows written by this run: all, late ones that were diverted, and corrections."""

    rows: int = 0
    rows_per_second: float = 0.0
    late: int = 0
    corrections: int = 0


@dataclass(frozen=True)
class Published:
    """How a pipeline is doing. Counts are of this run."""

    identity: str
    run: str
    state: str  # starting, waiting, working, stopping, stopped, done or failed
    every_ms: int = 3_000  # the next one comes within that time
    error: str = ""
    batch: int = -1
    batches: int = 0
    batch_ms: int | None = None
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    bad: int = 0
    late: Mapping[str, int] = field(default_factory=dict)  # dropped, by operator
    watermark_ms: int | None = None
    newest_ms: int | None = None  # the newest event time of the last batch
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)
    operators: tuple[OperatorStatus, ...] = ()
    outputs: Mapping[str, OutputStatus] = field(default_factory=dict)


@dataclass(frozen=True)
class VersionShown:
    version: str
    state: str = ""  # catching up, caught up or being removed
    tables: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    start_at: str | None = None


@dataclass(frozen=True)
class VersionsShown:
    """The versions of a pipeline that are deployed."""

    pipeline: str
    in_force: str | None = None
    previous: str | None = None
    switches: int = 0
    versions: tuple[VersionShown, ...] = ()


@dataclass(frozen=True)
class OutputDiff:
    """How a table or topic of two versions differs: without rows, which are for those only who
    may read them."""

    name: str
    is_equal: bool
    rows: tuple[int, ...] = ()
    open_rows: tuple[int, ...] = ()
    only: tuple[int, ...] = ()
    differing: int = 0
    by_column: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DiffShown:
    """A comparison of two versions; `error` is why there is none."""

    pipeline: str
    versions: tuple[str, ...]
    asked: str = ""  # the id of the command
    at_ms: int = 0
    is_running: bool = False
    error: str = ""
    cut: str = ""
    outputs: tuple[OutputDiff, ...] = ()

    @property
    def is_equal(self) -> bool:
        return not self.error and all(it.is_equal for it in self.outputs)


@dataclass(frozen=True)
class Command:
    """`id` is random; `versions` and `time` belong to `diff`."""

    id: str
    identity: str
    run: str
    action: Action
    by: str = ""
    versions: tuple[str, ...] = ()
    time: str | None = None


def encode(record: Any) -> bytes:
    """The value of a record."""
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def decode(kind: type[T], value: bytes) -> T:
    """Raises `ValueError` if it is no such record."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"{len(value)} bytes")
    try:
        content = json.loads(value, parse_constant=_no_number)
        made: T = _builder(kind)(content)  # type: ignore[arg-type]
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return made


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def shortened(text: str, longest: int = TEXT_MAX) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


Builder = Callable[[Any], Any]


@cache
def _builder(kind: Any) -> Builder:
    """A function that makes a value of the type from what JSON has, or raises `ValueError`."""
    origin, of = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _record_builder(kind)
    if origin in (Union, types.UnionType):
        inner = _builder(next(it for it in of if it is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return lambda value: _checked(value, value in of, kind)
    if origin is tuple:
        return _tuple_builder(kind, of)
    if origin is Mapping:
        build = _builder(of[1])

        def mapping(value: Any) -> dict[str, Any]:
            _checked(value, isinstance(value, dict), kind)
            return {_text(name): build(it) for name, it in value.items()}

        return mapping
    if kind is float:
        return _number
    if kind is int:
        return _whole
    if kind is str:
        return _text
    return lambda value: _checked(value, type(value) is kind, kind)  # a bool is no int


def _whole(value: Any) -> int:
    """Larger numbers fit into nothing that is done with them."""
    checked: int = _checked(value, type(value) is int and -(2**63) <= value < 2**63, int)
    return checked


def _number(value: Any) -> float:
    if type(value) is int:
        return float(_whole(value))
    checked: float = _checked(value, type(value) is float and math.isfinite(value), float)
    return checked


def _text(value: Any) -> str:
    checked: str = _checked(value, type(value) is str, str)
    checked.encode()  # half of a surrogate pair, which JSON may have, is in no page
    return checked


def _tuple_builder(kind: Any, of: tuple[Any, ...]) -> Builder:
    if of[-1] is Ellipsis:
        build = _builder(of[0])
        return lambda value: tuple(
            [build(it) for it in _checked(value, isinstance(value, list), kind)]
        )
    builders = [_builder(it) for it in of]

    def several(value: Any) -> tuple[Any, ...]:
        _checked(value, isinstance(value, list) and len(value) == len(builders), kind)
        return tuple([build(it) for build, it in zip(builders, value, strict=True)])

    return several


def _record_builder(kind: Any) -> Builder:
    hints = get_type_hints(kind)
    builders = [(it.name, _builder(hints[it.name])) for it in fields(kind)]

    def record(value: Any) -> Any:
        _checked(value, isinstance(value, dict), kind)
        given = {name: build(value[name]) for name, build in builders if name in value}
        try:
            return kind(**given)
        except TypeError as error:  # one without a default is missing
            raise ValueError(str(error)) from None

    return record


def _checked(value: Any, is_right: bool, kind: Any) -> Any:
    if not is_right:
        raise ValueError(f"{shortened(repr(value), 80)} is no {kind}")
    return value

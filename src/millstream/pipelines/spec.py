"""The declaration of a pipeline: the topics and tables that a function reads and writes, checked.

Nothing is read, no session and no broker is needed, and Spark is not imported. Modules that run a
pipeline take a `PipelineSpec`; users have a `Pipeline`, which can be started.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from millstream.errors import ConfigError
from millstream.partitions import DEAD_LETTER_PREFIX
from millstream.views.generations import FIRST, generation_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millstream.connect.tables.spec import Mode

FORMATS = ("raw", "json", "avro", "csv", "text")
BAD_RECORDS = ("deadletter", "drop", "fail")
TABLE_MODES = ("upsert", "append", "replace")
OUTPUT_MODES = ("append", "update", "complete")
RECORD_TIME = "timestamp"  # of a record that is not decoded
RECORD_COLUMNS = {"key", "value", "topic", "partition", RECORD_TIME, "headers"}
FIRST_VERSION = "1"
STAMPS_KEPT = 100
STAMPS_KEPT_MAX = 100_000
ONLY = "result"  # what the output is called where there is only one

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TABLE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*(\.[a-zA-Z_][a-zA-Z0-9_]*)?")
_PIPELINE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")


@dataclass(frozen=True)
class Topic:
    """A topic that pipelines read or write. Make one with `topic`."""

    name: str
    schema: str | StructType | None = None
    format: str | None = None  # None: what fits
    key: tuple[str, ...] = ()
    start_at: str | datetime | Mapping[int, int] = "earliest"
    watermark: tuple[str, str] | None = None
    bad_records: str = "deadletter"
    dead_letters: str = ""
    partitions: int = 1
    idle_after: str | None = None
    table_key: tuple[str, ...] = ()
    load_first: bool | None = None
    queries: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def read_format(self) -> str:
        """JSON where there is a schema, or else the bytes as they are."""
        return self.format or ("raw" if self.schema is None else "json")

    @property
    def may_lose_data(self) -> bool:
        """Whether a reader goes on where records were deleted before it read them."""
        given = {name.lower(): value for name, value in self.options.items()}
        return given.get("failondataloss", "").lower() == "false"

    def write_format(self, columns: Iterable[str]) -> str:
        """JSON, unless the columns are those of a record: a value, perhaps a key, and so on."""
        is_record = not self.key and "value" in columns and set(columns) <= RECORD_COLUMNS
        return self.format or ("raw" if is_record and self.schema is None else "json")


@dataclass(frozen=True)
class Table:
    """A table of the store that pipelines write. Make one with `table`."""

    name: str
    key: tuple[str, ...] = ()
    mode: Mode = "append"
    delete: str | None = None


@dataclass(frozen=True)
class View(Table):
    """A table that readers read at a stamp. Make one with `view`."""

    keeps: int = 0


Output: TypeAlias = Topic | Table


def topic(
    name: str,
    *,
    schema: str | StructType | None = None,
    format: str | None = None,
    key: str | tuple[str, ...] = (),
    start_at: str | datetime | Mapping[int, int] = "earliest",
    watermark: tuple[str, str] | None = None,
    bad_records: str = "deadletter",
    dead_letters: str | None = None,
    partitions: int = 1,
    idle_after: str | None = None,
    table_key: str | tuple[str, ...] = (),
    load_first: bool | None = None,
    queries: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Topic:
    """Declare a topic.

    To read: with a `schema` the values are decoded (`format`: JSON unless said otherwise), without
    one the columns are those of Spark's Kafka connector. `start_at` is where the first run begins:
    "earliest", "latest", a moment, or an offset for each partition. `watermark` is a column of the
    schema, or `timestamp` without one, and how late a record may come: `("at", "10 minutes")`.
    `bad_records` says what happens to records that do not decode: they go to the topic
    `dead_letters` ("deadletter"), are dropped ("drop") or end the query ("fail").

    `idle_after` lets the watermark advance while the topic is idle: if all of its records have been
    read and none has come for that long, the watermark behaves as if one had come that long ago. It
    is for times that follow the wall clock.

    `table_key` declares that the topic is a table, by the key of its records: a record replaces the
    earlier ones with its key, and one without a value deletes the row. It names the columns that
    the record's key becomes: text of the type that `schema` has for the column, or else a string; a
    JSON object if there are several. The stream also has the columns `_position` and `_deleted`,
    which `enrich`, `changes` and `table_join` use.

    With `load_first`, the default for tables beside other topics, the topic is loaded first:
    whenever the pipeline starts, it is read to its current end before other topics are read, at
    most a million records in a batch unless `options` say otherwise.

    `queries` names a topic of standing queries. Each micro-batch is planned with the end of that
    topic, in the column `_queries`, which `match_queries` needs.

    To write: `key` names the columns that make the key; all columns make the value, as JSON unless
    said otherwise. A column `value`, with or without `key`, is written as it is.

    `partitions` counts if the topic has to be created; `options` are further ones of
    `format("millstream")`, such as `maxOffsetsPerTrigger`.
    """
    declared = Topic(
        name=name,
        schema=schema,
        format=format,
        key=_names(f"topic {name}: key", key) or _names(f"topic {name}: table_key", table_key),
        start_at=start_at,
        watermark=watermark,
        bad_records=bad_records,
        dead_letters=dead_letters or DEAD_LETTER_PREFIX + name,
        partitions=partitions,
        idle_after=idle_after,
        table_key=_names(f"topic {name}: table_key", table_key),
        load_first=load_first,
        queries=queries or "",
        options={it: _option_text(value) for it, value in (options or {}).items()},
    )
    _check_topic(declared)
    return declared


def table(
    name: str,
    *,
    key: str | tuple[str, ...] = (),
    mode: Mode | None = None,
    delete: str | None = None,
) -> Table:
    """Declare a table of the store.

    With a `key` a row takes the place of the one with the same key ("upsert"), or of all with the
    same key ("replace"); without one, rows are added ("append"). `delete` names a boolean column:
    where it is true, the key's row is removed; or a column of weights, as `changes` and
    `table_join` produce them (`delete="_weight"`).
    """
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a table: use letters, digits and underscores")
    keys = _names(f"table {name}: key", key)
    mode = mode or ("upsert" if keys else "append")
    if mode not in TABLE_MODES:
        raise ConfigError(f"table {name}: mode is {mode!r}; it must be {_either(TABLE_MODES)}")
    if mode != "append" and not keys:
        raise ConfigError(f'table {name}: mode {mode} needs a key: table("{name}", key="...")')
    if delete is not None and mode == "append":
        raise ConfigError(f"table {name}: delete needs a key, to say which row is meant")
    return Table(name, keys, mode, delete)


def view(
    name: str | None = None,
    *,
    key: str | tuple[str, ...],
    keeps: int = STAMPS_KEPT,
) -> View:
    """Declare a maintained view: a table of the store, with one row for each `key`.

    All views of a pipeline change in one transaction, which is stamped with the offsets that it
    stands for; `Pipeline.read` reads them at one stamp. Rows with `_weight`, from `changes`,
    `table_join` and `millstream.pipelines.views`, add and remove rows; other rows take the place of
    the row with their key. The name is that of the output, unless one is given.

    The last `keeps` stamps can be read as well: for changes as they happen, and for a common stamp
    with the views of other pipelines.
    """
    if not isinstance(keeps, int) or isinstance(keeps, bool) or not 1 <= keeps <= STAMPS_KEPT_MAX:
        raise ConfigError(f"view: keeps={keeps!r}; it must be between 1 and {STAMPS_KEPT_MAX}")
    if name is not None and not _TABLE_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a view: use letters, digits and underscores")
    keys = _names("view: key" if name is None else f"view {name}: key", key)
    if not keys:
        raise ConfigError('a view has one row for each key: view(key="user")')
    return View(name or "", keys, "upsert", None, keeps)


@dataclass(frozen=True)
class PipelineSpec:
    """A function with its inputs, by parameter, and its outputs, by name.

    `name` and `version` are its identity: that of its query, checkpoint, consumer group,
    transactional id and progress in the store. Another version starts from the beginning.
    """

    function: Callable[..., Any]
    name: str
    reads: Mapping[str, Topic]
    writes: Mapping[str, Output]
    version: str = FIRST_VERSION
    group: str = ""
    output_mode: str | None = None
    generation: int = FIRST  # of its views: see `millstream.views.generations`
    in_step_with: str = ""  # the public name of a pipeline, at whose stamps its batches end

    def __post_init__(self) -> None:
        for name in ("__name__", "__doc__", "__module__", "__wrapped__"):  # as functools.wraps does
            value = self.function if name == "__wrapped__" else getattr(self.function, name, None)
            object.__setattr__(self, name, value)
        if not _PIPELINE_NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot name a pipeline, its checkpoint and its group: use letters, "
                'digits, dots and dashes: @pipeline(name="...")'
            )
        if not _PIPELINE_NAME.fullmatch(self.version):
            raise ConfigError(
                f"pipeline {self.name}: version is {self.version!r}; use letters, digits, dots and "
                "dashes"
            )
        if not self.reads or not self.writes:
            raise ConfigError(f"pipeline {self.name} declares nothing that it reads, or writes")
        if self.output_mode is not None and self.output_mode not in OUTPUT_MODES:
            raise ConfigError(
                f"pipeline {self.name}: output_mode is {self.output_mode!r}; "
                f"it must be {_either(OUTPUT_MODES)}"
            )
        _check_parameters(self)
        _check_no_loop(self)
        _check_tables_differ(self)

    def __call__(self, *frames: Any, **named: Any) -> Any:
        """The function itself, on whatever DataFrames."""
        return self.function(*frames, **named)

    @property
    def home(self) -> Path | None:
        """The directory of the file that defines it; None for one typed into a notebook."""
        file = getattr(self.function, "__globals__", {}).get("__file__")
        return Path(file).resolve().parent if file else None

    @property
    def loaded_first(self) -> Mapping[str, Topic]:
        """The inputs that are loaded before the others are read, by parameter. By default these are
        the tables, if there are other inputs."""
        has_streams = not all(it.table_key for it in self.reads.values())
        return {
            parameter: it
            for parameter, it in self.reads.items()
            if (bool(it.table_key) and has_streams if it.load_first is None else it.load_first)
        }

    @property
    def views(self) -> Mapping[str, View]:
        """The outputs that are views, by their names among the outputs."""
        return {name: it for name, it in self.writes.items() if isinstance(it, View)}

    @property
    def public_name(self) -> str:
        """The name, and the version unless it is the first: `revenue`, `revenue@2`. Readers of
        views use it, whichever generation they read."""
        return self.name if self.version == FIRST_VERSION else f"{self.name}@{self.version}"

    @property
    def identity(self) -> str:
        """The public name, and the generation of its views unless it is the first: `shop+2`."""
        return generation_name(self.public_name, self.generation)

    @property
    def group_id(self) -> str:
        return generation_name(self.group or self.public_name, self.generation)

    def variant(self, name: str, **changes: Any) -> Self:
        """The same function as another pipeline, with outputs of its own.

        With the same name and version it takes the place of this one, and may keep its outputs.
        """
        for key in ("reads", "writes"):
            if key in changes:
                changes[key] = by_name(changes[key], self.function, key)
        if "version" in changes:
            changes["version"] = str(changes["version"])
        made = replace(self, name=name, **changes)
        if made.identity != self.identity:
            _check_own_outputs(made, self)
        return made


def by_name(declared: Any, function: Callable[..., Any], which: str) -> Mapping[str, Any]:
    """One declaration, or several by name; raises for anything else."""
    allowed = (Topic,) if which == "reads" else (Topic, Table)
    if isinstance(declared, allowed):
        if which == "writes":
            return {ONLY: _named(declared, name_of(function))}
        parameters = _parameters(function)
        return {parameters[0] if parameters else ONLY: declared}
    if isinstance(declared, Mapping) and all(isinstance(it, allowed) for it in declared.values()):
        return {name: _named(it, name) for name, it in declared.items()}
    what = 'topic("...")' if which == "reads" else 'topic("...") or table("...")'
    raise ConfigError(
        f'{name_of(function)}: {which} must be {what}, or several by name: {{"name": {what}}}'
    )


def name_of(function: Callable[..., Any]) -> str:
    """Its own, or that of its kind: windows and patterns are objects that can be called."""
    return getattr(function, "__name__", type(function).__name__)


def _named(declared: Any, name: str) -> Any:
    """A view without a name of its own has that of its output."""
    if not isinstance(declared, View) or declared.name:
        return declared
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a view: use letters, digits and underscores")
    return replace(declared, name=name)


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters that must be given."""
    return [
        it.name
        for it in inspect.signature(function).parameters.values()
        if it.default is it.empty and it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)
    ]


def _check_parameters(declared: PipelineSpec) -> None:
    """Every required parameter is declared, and everything declared is a parameter."""
    signature = inspect.signature(declared.function)
    given = ", ".join(declared.reads)
    missing = [it for it in _parameters(declared.function) if it not in declared.reads]
    if missing:
        example = ", ".join(f'"{it}": topic(...)' for it in (*declared.reads, *missing))
        raise ConfigError(
            f"{declared.name}{signature} takes {', '.join(missing)}, which is not declared "
            f"(declared: {given}): write reads={{{example}}}"
        )
    unknown = [it for it in declared.reads if it not in signature.parameters]
    if unknown:
        raise ConfigError(
            f"{declared.name}{signature} has no parameter {', '.join(unknown)}: the names in reads "
            "are those of the function's parameters"
        )


def _check_no_loop(declared: PipelineSpec) -> None:
    """A topic that is read and written would grow for ever by its own records."""
    read = {topic.name for topic in declared.reads.values()}
    written = {it.name for it in declared.writes.values() if isinstance(it, Topic)}
    for name in sorted(read & written):
        raise ConfigError(
            f"pipeline {declared.name} reads topic {name} and writes to it: it would read its own "
            "records again and again. Write to another topic"
        )


def _check_tables_differ(declared: PipelineSpec) -> None:
    """Outputs of one batch are written one after another; none may undo another."""
    found: dict[str, str] = {}  # the outputs, by table
    for output, it in declared.writes.items():
        if isinstance(it, Table):
            other = found.setdefault(_identity(it)[1], output)
            if other != output:
                raise ConfigError(
                    f"pipeline {declared.name} writes outputs {other} and {output} to the same "
                    f"table, {it.name}: give each a table of its own"
                )


def _check_topic(declared: Topic) -> None:
    name, start_at, watermark = declared.name, declared.start_at, declared.watermark
    if not _TOPIC_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a topic: use letters, digits, dots, dashes")
    if declared.bad_records not in BAD_RECORDS:
        raise ConfigError(
            f"topic {name}: bad_records is {declared.bad_records!r}; it must be "
            f"{_either(BAD_RECORDS)}"
        )
    if declared.format is not None and declared.format not in FORMATS:
        raise ConfigError(
            f"topic {name}: format is {declared.format!r}; it must be {_either(FORMATS)}"
        )
    check_start_at(f"topic {name}", start_at)
    if (declared.load_first or declared.table_key) and start_at != "earliest":
        raise ConfigError(f"topic {name}: a table is read from its beginning; leave out start_at")
    if declared.queries and declared.schema is None:
        raise ConfigError(f"topic {name}: queries needs a schema, for the columns of the events")
    if declared.idle_after is not None and (watermark is None or declared.schema is None):
        raise ConfigError(
            f"topic {name}: idle_after needs a schema and a watermark, which is what it moves"
        )
    if declared.table_key and declared.schema is None and declared.format != "avro":
        raise ConfigError(f"topic {name}: table_key needs a schema, for the columns of the values")
    if watermark is not None and (isinstance(watermark, str) or len(watermark) != 2):
        raise ConfigError(
            f'topic {name}: watermark is {watermark!r}; write ("column", "10 minutes")'
        )
    has_columns = declared.schema is not None or declared.format == "avro"
    if watermark is not None and not has_columns and watermark[0] != RECORD_TIME:
        column, delay = watermark
        raise ConfigError(
            f"topic {name}: watermark needs a schema, with the column {column}. For records that "
            f'are not decoded, call frame.withWatermark("{column}", "{delay}") in the function'
        )


def check_start_at(what: str, start_at: object) -> None:
    """Raises `ConfigError` unless `start_at` is a place in a topic, as `topic` describes it."""
    if isinstance(start_at, datetime):
        if start_at.utcoffset() is None:
            raise ConfigError(
                f"{what}: start_at is {start_at!r}, which has no time zone; write "
                "datetime(..., tzinfo=UTC)"
            )
    elif start_at not in ("earliest", "latest") and not _are_offsets(start_at):
        raise ConfigError(
            f"{what}: start_at is {start_at!r}; it must be earliest, latest, a datetime or "
            "an offset for each partition ({0: 23})"
        )


def _are_offsets(given: object) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(it, int) and not isinstance(it, bool) for pair in given.items() for it in pair
    )


def _check_own_outputs(made: PipelineSpec, original: PipelineSpec) -> None:
    """Two pipelines in one topic or table would double, or overwrite, each other's rows."""
    used = {_identity(it) for it in original.writes.values()}
    for it in made.writes.values():
        if _identity(it) in used:
            what = "topic" if isinstance(it, Topic) else "table"
            raise ConfigError(
                f"{made.identity} writes to {what} {it.name}, as {original.identity} does: give "
                f'it outputs of its own: variant("{made.name}", writes={what}("..."))'
            )


def _identity(output: Output) -> tuple[bool, str]:
    """What two outputs have in common if they are one topic or one table. A view is a table, and
    SQLite takes `Sales` and `sales` for the same one."""
    is_topic = isinstance(output, Topic)
    return is_topic, output.name if is_topic else output.name.lower()


def _names(what: str, given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """One column, or several; raises `ConfigError` for anything else."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or not all(isinstance(it, str) and it for it in names):
        raise ConfigError(f'{what} is {given!r}; name a column, "id", or several: ("user", "day")')
    return tuple(names)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

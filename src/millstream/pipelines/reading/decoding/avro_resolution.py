"""How values of a writer's schema become rows of the reader's: Avro's schema resolution.

The reader's schema is that of the rows. Fields are found by name and come in any order; what the
rows do not ask for is passed over. An Avro schema may be given for the reader besides: its aliases
are other names of fields, its defaults stand for fields that the writer does not have. A field that
is nowhere is null, or a failure if it may not be.

The result is a list of steps for the compiled decoder (`_avro.pxi`), made once per writer's schema.
What fits which type is written down in docs/decisions/0012-avro-decoding.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.client.avro_schema import NO_DEFAULT, AvroField, AvroType
from millstream.errors import MillstreamError
from millstream.pipelines.avro.default import encode_default
from millstream.pipelines.reading.decoding.results import WRONG_TYPE

if TYPE_CHECKING:
    from millstream.pipelines.reading.decoding._avro import Step
    from millstream.pipelines.reading.decoding._rows import Field

_LONG_MAX = 2**63 - 1
_INTEGER_BYTES = {"byte": 1, "short": 2, "int": 4, "long": 8}
_FLOATING_BYTES = {"float": 4, "double": 8}
_DAY_MS = 86_400_000
# The unit in which a logical type counts, per unit of its column; negative: the unit is smaller.
_MOMENT_FACTORS = {"millis": 1000, "micros": 1, "nanos": -1000}
_TIME_FACTORS = {"millis": 1_000_000, "micros": 1000}
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class Unresolvable(MillstreamError):
    """Values of the writer's schema cannot be rows of the reader's."""

    reason = WRONG_TYPE


@dataclass(frozen=True)
class Target:
    """A column, numbered as `_avro.pyx` does."""

    number: int
    path: str
    name: str
    kind: str
    nullable: bool
    scale: int
    children: tuple[Target, ...]

    def __str__(self) -> str:
        return f"field {self.path}" if self.path else "the value"


def targets_of(fields: list[Field]) -> Target:
    """The row, and in it the columns."""
    return _target(("", "struct", False, 0, 0, fields), "", 0)[0]


def _target(field: Field, path: str, number: int) -> tuple[Target, int]:
    name, kind, nullable, _, scale, children = field
    own, number = number, number + 1
    targets = []
    for child in children:
        inner = f"{path}.{child[0]}".lstrip(".") if kind == "struct" else f"{path}[]"
        target, number = _target(child, inner, number)
        targets.append(target)
    return Target(own, path, name, kind, nullable, scale, tuple(targets)), number


def resolve(writer: AvroType, reader: AvroType | None, row: Target) -> list[Step]:
    """The steps from the one to the other. Raises `Unresolvable`.

    A value that is no record is the only column of its row.
    """
    resolver = _Resolver()
    branches = writer.items if writer.kind == "union" else [writer]
    if any(it.kind == "record" for it in branches):
        resolver.resolve(writer, reader, row)
    elif len(row.children) == 1:
        place = resolver.reserve()
        value = resolver.resolve(writer, reader, row.children[0])
        resolver.set(place, "record", row, children=[value])
    else:
        raise Unresolvable(
            f"its values are {writer}, no records, and the row has {len(row.children)} columns; "
            "declare one"
        )
    return resolver.steps


class _Resolver:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._skipped: dict[int, int] = {}  # the steps that pass over a type, by its identity

    # Steps

    def reserve(self) -> int:
        """The place of a step whose parts come after it."""
        return self.add("nothing")

    def add(self, operation: str, target: Target | None = None, **details: Any) -> int:
        self.steps.append(("nothing", -1, 0, 0, 0, 0, b"", []))
        return self.set(len(self.steps) - 1, operation, target, **details)

    def set(
        self,
        place: int,
        operation: str,
        target: Target | None = None,
        *,
        size: int | str = 0,
        low: int = 0,
        high: int = 0,
        factor: int = 1,
        text: bytes = b"",
        children: list[int] | None = None,
    ) -> int:
        column = -1 if target is None else target.number
        self.steps[place] = (operation, column, size, low, high, factor, text, children or [])
        return place

    # Types

    def resolve(self, writer: AvroType, reader: AvroType | None, target: Target) -> int:
        """The step that puts what the writer wrote into the column."""
        if writer.kind == "union":
            return self._from_union(writer, reader, target)
        if reader is not None and reader.kind == "union":
            reader = _branch_for(writer, reader, target)
        if writer.kind == "null":
            return self.add("null", target) if target.nullable else self._fail("null", target)
        if reader is not None and not _promotes(writer, reader):
            raise Unresolvable(f"{target} is {writer}, and avroSchema says {reader}")
        match writer.kind, target.kind:
            case "record", "struct":
                return self._record(writer, reader, target)
            case "array", "array":
                place = self.reserve()
                item = self.resolve(writer.items[0], _item(reader), target.children[0])
                size = min_size(writer.items[0])
                return self.set(place, "items", target, size=size, children=[item])
            case "map", "map":
                place = self.reserve()
                key = self.add("bytes", target.children[0], size=-1)
                item = self.resolve(writer.items[0], _item(reader), target.children[1])
                size = 1 + min_size(writer.items[0])
                return self.set(place, "pairs", target, size=size, children=[key, item])
            case "enum", "string":
                return self._enum(writer, reader, target)
        return self._scalar(writer, reader, target)

    def _fail(self, problem: str, target: Target, found: str = "") -> int:
        return self.add("fail", target, size=problem, text=found.encode())

    def _from_union(self, writer: AvroType, reader: AvroType | None, target: Target) -> int:
        """By branch; a branch that does not fit fails only where it is met."""
        if _is_members(writer, target):
            return self._members(writer, target)
        place = self.reserve()
        children = []
        errors = []
        for branch in writer.items:
            try:
                children.append(self.resolve(branch, reader, target))
            except Unresolvable as error:
                errors.append(error)
                children.append(self._fail("wrong type", target, str(branch)))
        if errors and len(errors) == sum(it.kind != "null" for it in writer.items):
            raise errors[0]
        return self.set(place, "choice", target, children=children)

    def _members(self, writer: AvroType, target: Target) -> int:
        """As Spark reads unions: a struct with a field for each branch, all null but one."""
        place = self.reserve()
        children = []
        member = 0
        for branch in writer.items:
            if branch.kind == "null":
                null = self.add("null", target) if target.nullable else self._fail("null", target)
                children.append(null)
                continue
            parts = [
                self.resolve(branch, None, it) if number == member else self.add("null", it)
                for number, it in enumerate(target.children)
            ]
            children.append(self.add("record", target, children=parts))
            member += 1
        return self.set(place, "choice", target, children=children)

    def _record(self, writer: AvroType, reader: AvroType | None, target: Target) -> int:
        place = self.reserve()
        wanted: dict[str, tuple[Target, AvroField | None]] = {}
        absent: list[tuple[Target, AvroField | None]] = []
        written = {it.name for it in writer.fields}
        known = {} if reader is None else {it.name: it for it in reader.fields}
        for column in target.children:
            ours = known.get(column.name)
            names = (column.name, *(ours.aliases if ours else ()))
            found = next((it for it in names if it in written and it not in wanted), None)
            if found is None:
                absent.append((column, ours))
            else:
                wanted[found] = (column, ours)
        children = []
        for field in writer.fields:
            if field.name in wanted:
                column, ours = wanted[field.name]
                children.append(self.resolve(field.type, ours.type if ours else None, column))
            else:
                children.append(self._skip(field.type))
        children += [self._absent(column, ours) for column, ours in absent]
        return self.set(place, "record", target, children=children)

    def _absent(self, column: Target, ours: AvroField | None) -> int:
        if ours is not None and ours.default is not NO_DEFAULT:
            text = encode_default(ours.type, ours.default)
            value = self.resolve(ours.type, ours.type, column)
            return self.add("default", column, text=text, children=[value])
        return self.add("null", column) if column.nullable else self._fail("missing", column)

    def _enum(self, writer: AvroType, reader: AvroType | None, target: Target) -> int:
        place = self.reserve()
        children = []
        for symbol in writer.symbols:
            meant = symbol
            if reader is not None and symbol not in reader.symbols:
                if reader.default is NO_DEFAULT:
                    children.append(self._fail("other symbol", target, symbol))
                    continue
                meant = str(reader.default)
            children.append(self.add("constant", target, text=meant.encode()))
        return self.set(place, "choice", target, children=children)

    def _scalar(self, writer: AvroType, reader: AvroType | None, target: Target) -> int:
        logical = writer.logical
        if not logical and reader is not None and reader.kind == writer.kind:
            logical = reader.logical
        size = writer.size if writer.kind == "fixed" else -1
        match writer.kind, target.kind:
            case "boolean", "boolean":
                return self.add("boolean", target)
            case "int" | "long", _:
                return self._number(writer, logical, target)
            case "float", "float" | "double":
                return self.add("float", target)
            case "double", "double":
                return self.add("double", target)
            case "bytes" | "fixed", "decimal" if writer.logical == "decimal":
                factor = target.scale - writer.scale
                return self.add("decimal", target, size=size, factor=factor)
            case "string" | "bytes", "string" | "binary" if not (
                writer.logical == "decimal" and target.kind == "string"
            ):
                return self.add("bytes", target, size=size)
            case "fixed", "binary":
                return self.add("fixed", target, size=size)
            case "fixed", "string" if writer.logical == "uuid":
                return self.add("uuid", target)
        raise _misfit(writer, target)

    def _number(self, writer: AvroType, logical: str, target: Target) -> int:
        size = 4 if writer.kind == "int" else 8
        unit = logical.rpartition("-")[2]
        if target.kind in _INTEGER_BYTES:
            high = 2 ** (8 * _INTEGER_BYTES[target.kind] - 1) - 1
            return self.add("integer", target, size=size, low=-high - 1, high=high)
        if target.kind in _FLOATING_BYTES:
            return self.add("integer as floating", target, size=size)
        if target.kind == "date" and logical == "date":
            return self.add("integer", target, size=size, low=-(2**31), high=2**31 - 1)
        if target.kind == "time" and unit in _TIME_FACTORS and logical.startswith("time-"):
            high = _DAY_MS * (1 if unit == "millis" else 1000) - 1
            return self.add("integer", target, size=size, high=high, factor=_TIME_FACTORS[unit])
        is_local = logical.startswith("local-timestamp-")
        if (target.kind == "timestamp" and (is_local or logical.startswith("timestamp-"))) or (
            target.kind == "timestamp_ntz" and is_local
        ):
            factor = _MOMENT_FACTORS[unit]
            high = _LONG_MAX // max(factor, 1)
            low = -high if factor > 1 else -high - 1
            return self.add("integer", target, size=size, low=low, high=high, factor=factor)
        raise _misfit(writer, target)

    # What no column asks for

    def _skip(self, writer: AvroType) -> int:
        found = self._skipped.get(id(writer))
        if found is not None:
            return found
        place = self._skipped[id(writer)] = self.reserve()
        match writer.kind:
            case "boolean":
                self.set(place, "skip", size=1)
            case "int" | "long":
                self.set(place, "skip number")
            case "float":
                self.set(place, "skip", size=4)
            case "double":
                self.set(place, "skip", size=8)
            case "fixed":
                self.set(place, "skip", size=writer.size)
            case "string" | "bytes":
                self.set(place, "skip bytes")
            case "enum":
                self.set(place, "choice", children=[self.add("nothing")] * len(writer.symbols))
            case "union":
                self.set(place, "choice", children=[self._skip(it) for it in writer.items])
            case "record":
                self.set(place, "record", children=[self._skip(it.type) for it in writer.fields])
            case "array":
                item = self._skip(writer.items[0])
                size = min_size(writer.items[0])
                self.set(place, "skip items", size=size, children=[item])
            case "map":
                parts = [self.add("skip bytes"), self._skip(writer.items[0])]
                pair = self.add("record", children=parts)
                size = 1 + min_size(writer.items[0])
                self.set(place, "skip items", size=size, children=[pair])
        return place


def _misfit(writer: AvroType, target: Target) -> Unresolvable:
    hint = ""
    if target.kind in ("date", "timestamp", "timestamp_ntz", "time") and writer.kind in (
        "int",
        "long",
    ):
        hint = "; declare it long, and convert it as its unit asks"
    return Unresolvable(f"{target} is {writer}, not {target.kind}{hint}")


def _item(reader: AvroType | None) -> AvroType | None:
    return None if reader is None else reader.items[0]


def _promotes(writer: AvroType, reader: AvroType) -> bool:
    if writer.kind == reader.kind:
        return writer.kind != "fixed" or writer.size == reader.size
    return reader.kind in _PROMOTIONS.get(writer.kind, ())


def _branch_for(writer: AvroType, union: AvroType, target: Target) -> AvroType:
    """The first branch of the same name and kind, else the first to which the writer's promotes."""
    fits = [it for it in union.items if _promotes(writer, it)]
    if not fits:
        raise Unresolvable(f"{target} is {writer}, and avroSchema says {union}")
    for branch in fits:
        if branch.kind == writer.kind and (
            not writer.name
            or branch.short_name == writer.short_name
            or writer.name in branch.aliases
        ):
            return branch
    return fits[0]


def _is_members(writer: AvroType, target: Target) -> bool:
    branches = sum(it.kind != "null" for it in writer.items)
    names = [it.name for it in target.children]
    return (
        branches > 1
        and target.kind == "struct"
        and names == [f"member{number}" for number in range(branches)]
        and all(it.nullable for it in target.children)
    )


def min_size(writer: AvroType, within: frozenset[int] = frozenset()) -> int:
    """The least number of bytes of a value; 0 only for types whose values have none at all."""
    match writer.kind:
        case "null":
            return 0
        case "float":
            return 4
        case "double":
            return 8
        case "fixed":
            return writer.size
        case "record":
            if id(writer) in within:
                return 0
            within |= {id(writer)}
            return sum(min_size(it.type, within) for it in writer.fields)
        case "union":
            return 1 + min((min_size(it, within) for it in writer.items), default=0)
    return 1

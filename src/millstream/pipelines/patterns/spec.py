"""The settings of a pattern, parsed and checked before there are rows.

`PatternSpec` is plain data. What depends on the columns of rows, like types, is in `definition.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.columns import check_choice
from millstream.pipelines.durations import duration_text
from millstream.pipelines.lateness import Lateness
from millstream.pipelines.patterns.automaton import draw
from millstream.pipelines.patterns.conditions import (
    Condition,
    Scope,
    parse_condition,
    values_of,
)
from millstream.pipelines.patterns.expressions import parse_expression, walk
from millstream.pipelines.patterns.language import (
    Anchor,
    Excluded,
    Gap,
    Node,
    PatternError,
    identity_of,
    parse_pattern,
    variables_of,
)
from millstream.pipelines.patterns.language import walk as walk_pattern
from millstream.pipelines.patterns.matcher import Skip
from millstream.pipelines.patterns.program import Program, compile_pattern
from millstream.pipelines.state.keys import check_buckets

if TYPE_CHECKING:
    from pyspark.sql import Column

RowsPerMatch: TypeAlias = Literal["one", "all", "all omitting empty", "all with unmatched"]
RowOrder: TypeAlias = Literal["time", "arrival"]
MAX_ROWS = 10_000
_SKIP = re.compile(r"(?:to (first|last) |to )(\w+)", re.IGNORECASE)


@dataclass(frozen=True)
class PatternSpec:
    """The settings. Make one with `match` or `recognize`."""

    pattern: str
    where: Mapping[str, str | Column]
    keys: tuple[str | Column, ...]
    time: str | Column
    measures: Mapping[str, str]
    within_us: int | None
    skip_text: str
    rows: RowsPerMatch
    order_by: tuple[str | Column, ...]
    subsets: Mapping[str, Sequence[str]]
    max_rows: int
    lateness: Lateness
    buckets: int
    order: RowOrder = "time"
    is_sql: bool = False  # names are in upper case, columns in the order of the standard
    descending: tuple[str, ...] = ()  # of the time and `order_by`

    def __post_init__(self) -> None:
        check_choice("rows", self.rows, RowsPerMatch)
        check_choice("order", self.order, RowOrder)
        check_buckets(self.buckets)
        if self.max_rows < 1:
            raise ConfigError(f"max_rows={self.max_rows}: it must be at least 1")
        self._check_names()
        _ = self.program, self.conditions, self.skip
        for name, text in self.measures.items():
            try:
                parse_expression(text, self.scope.bits)
            except PatternError as error:
                raise ConfigError(f"measure {name}: {error}") from None
        if self.rows == "all with unmatched" and any(
            isinstance(it, Excluded | Gap) for it in walk_pattern(self.tree)
        ):
            raise ConfigError(
                "rows that are excluded from matches, with {- -} or then, would be neither matched "
                'nor unmatched: choose rows="all"'
            )

    def _check_names(self) -> None:
        variables = self.variables
        for name in self.where:
            if identity_of(name) not in variables and name not in variables:
                raise ConfigError(
                    f"where has a condition for {name}, which is not in the pattern {self.pattern}"
                )
        for name, parts in self.subsets.items():
            if identity_of(name) in variables:
                raise ConfigError(f"subset {name} has the name of a variable: choose another")
            for part in parts:
                if identity_of(part) not in variables:
                    raise ConfigError(f"subset {name} names {part}, which is not in the pattern")
        if not self.measures and not self.keys and self.rows == "one":
            raise ConfigError(
                'a match needs a key or a measure, like since="first(at)", or rows="all"'
            )

    @cached_property
    def tree(self) -> Node:
        return parse_pattern(self.pattern)

    @cached_property
    def variables(self) -> dict[str, str]:
        """The names of variables by key."""
        found = variables_of(self.tree)
        if not self.is_sql:
            return {key: it.name for key, it in found.items()}
        is_quoted = {key: self.pattern[it.place - 1 : it.place] == '"' for key, it in found.items()}
        return {key: it.name if is_quoted[key] else it.name.upper() for key, it in found.items()}

    @cached_property
    def program(self) -> Program:
        return compile_pattern(self.tree, self.variables)

    @cached_property
    def scope(self) -> Scope:
        bits = {key: 1 << place for place, key in enumerate(self.variables)}
        for name, parts in self.subsets.items():
            bits[identity_of(name)] = sum({bits[identity_of(part)] for part in parts})
        return Scope(bits, self.program.universal, self.variables)

    @cached_property
    def given(self) -> dict[str, str | Column]:
        """The conditions by key."""
        keys = {name: name if name in self.variables else identity_of(name) for name in self.where}
        return {keys[name]: it for name, it in self.where.items()}

    @cached_property
    def conditions(self) -> list[Condition]:
        """Of each variable in the order of their numbers, with that of gaps."""
        found = []
        for key in self.variables:
            given = self.given.get(key)
            if not isinstance(given, str):
                found.append(Condition("" if given is None else str(given)))
                continue
            try:
                found.append(parse_condition(given, key, self.scope))
            except PatternError as error:
                raise ConfigError(f"condition of {self.variables[key]}: {error}") from None
        return found + [Condition("")] * self.program.has_gap

    @cached_property
    def skip(self) -> tuple[Skip, int]:
        """The mode, and the bits of the variable to skip to."""
        text = " ".join(self.skip_text.lower().split())
        if text == "past last row":
            return "past last row", 0
        if text == "to next row":
            return "to next row", 0
        found = _SKIP.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"skip={self.skip_text!r}: choose past last row, to next row, to first x or to "
                "last x, with a variable x"
            )
        bits = self.scope.bits.get(identity_of(found[2]))
        if bits is None:
            raise ConfigError(f"skip={self.skip_text!r}: {found[2]} is not in the pattern")
        return "to first" if found[1] == "first" else "to last", bits

    @property
    def skip_to(self) -> tuple[str, int] | None:
        mode, bits = self.skip
        return (mode.removeprefix("to "), bits) if bits else None

    @property
    def anchors(self) -> list[Anchor]:
        return [it for it in walk_pattern(self.tree) if isinstance(it, Anchor)]

    @property
    def remembers_keys(self) -> bool:
        """Whether something of each key must be kept after its last match."""
        return self.has_match_number or any(it.is_start for it in self.anchors)

    @property
    def has_match_number(self) -> bool:
        trees = (parse_expression(text, self.scope.bits) for text in self.measures.values())
        return any(it.kind == "match_number" for tree in trees for it in walk(tree))

    def check_stream(self) -> None:
        """Raise `ConfigError` for what cannot be decided, or kept, while rows still come."""
        if self.within_us is None:
            raise ConfigError(
                "a pattern over a stream needs a limit, or unfinished matches would be kept "
                'forever: within="10 minutes"'
            )
        if self.time in self.descending:
            raise ConfigError(
                f"ORDER BY {self.time} DESC begins with the newest row, and a stream always gets "
                "newer ones: use it in a batch, or reverse the pattern"
            )
        for anchor in self.anchors:
            if not anchor.is_start:
                raise PatternError(
                    "$ is behind the last row of a key, and a stream has no last row: use it in a "
                    "batch",
                    self.pattern,
                    anchor.place,
                )
        if any(it.shift < 0 for it in values_of(self.conditions)):
            raise ConfigError(
                "a condition reads NEXT, a row that a stream does not have yet: make that row a "
                "part of the pattern"
            )
        for name, text in self.measures.items():
            for it in walk(parse_expression(text, self.scope.bits)):
                if it.kind == "navigate" and it.name == "next":
                    raise ConfigError(
                        f"measure {name} reads NEXT, a row that a stream may not have yet when the "
                        "match is emitted: make that row a part of the pattern"
                    )

    def identity(self) -> str:
        """The settings that the content of state depends on."""
        settings: dict[str, object] = {
            "where": {key: str(it) for key, it in self.given.items()},
            # Columns for measures are stored under numbers.
            "measures": dict(self.measures),
            "rows": self.rows,
            "within_us": self.within_us,
            "max_rows": self.max_rows,
            "skip": " ".join(self.skip_text.lower().split()),
            "subsets": {name: list(parts) for name, parts in self.subsets.items()},
            "order": self.order,
            "order_by": [str(it) for it in self.order_by],
        }
        if self.descending:
            settings["descending"] = list(self.descending)
        return f"pattern {self.pattern}, {json.dumps(settings, sort_keys=True)}"

    def details(self) -> dict[str, str]:
        """What each condition reads, and the automaton, by name."""
        found = {}
        for name, condition in zip(self.variables.values(), self.conditions, strict=False):
            kind = f"{condition.text} ({condition.kind})" if condition.text else "any row"
            found[f"condition of {name}"] = kind
        return found | {"automaton": "\n".join(draw(self.program))}

    def explain(self) -> str:
        """The automaton, and what each condition reads, as text."""
        lines = [f"pattern {self.pattern}"]
        if self.within_us is not None:
            lines.append(f"within {duration_text(self.within_us)}, at most {self.max_rows} rows")
        lines.append(f"in the order of {self.order}")
        lines.append(f"after a match: {self.skip_text}")
        details = self.details()
        drawing = details.pop("automaton")
        lines += [f"{name}: {text}" for name, text in details.items()]
        lines += ["automaton", *(f"  {line}" for line in drawing.splitlines())]
        return "\n".join(lines)

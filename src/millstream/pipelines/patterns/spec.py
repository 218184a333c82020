"""The settings of a pattern, parsed and checked before there are rows.

`PatternSpec` is plain data. What depends on the columns of rows, like types, is in `definition.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_text
from millstream.pipelines.lateness import Lateness
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

if TYPE_CHECKING:
    from pyspark.sql import Column

RowsPerMatch: TypeAlias = Literal["one", "all", "all omitting empty", "all with unmatched"]
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
    classifiers_in_upper_case: bool = False

    def __post_init__(self) -> None:
        if self.rows not in get_args(RowsPerMatch):
            choices = ", ".join(get_args(RowsPerMatch))
            raise ConfigError(f"rows={self.rows!r}: choose one of {choices}")
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
        if not self.measures and self.rows == "one":
            raise ConfigError(
                'a match needs at least one measure, like since="first(at)", or rows="all"'
            )

    @cached_property
    def tree(self) -> Node:
        return parse_pattern(self.pattern)

    @cached_property
    def variables(self) -> dict[str, str]:
        """The names of variables by key."""
        upper = self.classifiers_in_upper_case
        return {
            key: it.name.upper() if upper and it.key == identity_of(it.name) else it.name
            for key, it in variables_of(self.tree).items()
        }

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
    def has_anchor(self) -> bool:
        return any(isinstance(it, Anchor) for it in walk_pattern(self.tree))

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
        if self.has_anchor:
            raise ConfigError(
                "^ and $ are the first and the last row of a key, and a stream has no last row and "
                "forgets the first: use them in a batch"
            )
        if any(it.shift < 0 for it in values_of(self.conditions)):
            raise ConfigError(
                "a condition reads NEXT, a row that a stream does not have yet: make that row a "
                "part of the pattern"
            )
        for name, text in self.measures.items():
            for it in walk(parse_expression(text, self.scope.bits)):
                if it.kind == "navigate" and it.name in ("prev", "next"):
                    raise ConfigError(
                        f"measure {name} reads {it.name.upper()}, a row that may not be in the "
                        "match, which a stream does not keep: make that row a part of the pattern"
                    )

    def identity(self) -> str:
        """The settings that the content of state depends on."""
        settings = {
            "where": {key: str(it) for key, it in self.given.items()},
            # Columns for measures are stored under numbers.
            "measures": dict(self.measures),
            "rows": self.rows,
            "within_us": self.within_us,
            "max_rows": self.max_rows,
            "skip": " ".join(self.skip_text.lower().split()),
            "subsets": {name: list(parts) for name, parts in self.subsets.items()},
            "order_by": [str(it) for it in self.order_by],
        }
        return f"pattern {self.pattern}, {json.dumps(settings, sort_keys=True)}"

    def details(self) -> dict[str, str]:
        """What each condition reads, and the program, by name."""
        found = {}
        for name, condition in zip(self.variables.values(), self.conditions, strict=False):
            kind = f"{condition.text} ({condition.kind})" if condition.text else "any row"
            found[f"condition of {name}"] = kind
        steps = (" ".join(line.split()) for line in self.program.listing())
        return found | {"program": "; ".join(steps)}

    def explain(self) -> str:
        """The program, and what each condition reads, as text."""
        lines = [f"pattern {self.pattern}"]
        if self.within_us is not None:
            lines.append(f"within {duration_text(self.within_us)}, at most {self.max_rows} rows")
        lines.append(f"after a match: {self.skip_text}")
        details = self.details()
        details.pop("program")
        lines += [f"{name}: {text}" for name, text in details.items()]
        lines += ["program", *(f"  {line}" for line in self.program.listing())]
        return "\n".join(lines)

"""SQL's MATCH_RECOGNIZE, as text.

    falls = recognize('''
        PARTITION BY symbol ORDER BY at, id
        MEASURES first(down.price) AS began, last(down.price) AS bottom
        ONE ROW PER MATCH
        AFTER MATCH SKIP PAST LAST ROW
        PATTERN (strt down+ up+) WITHIN INTERVAL '1' HOUR
        SUBSET s = (strt, down)
        DEFINE down AS price < prev(price), up AS price > prev(price)
    ''')
    trades.transform(falls)

The words around it, `MATCH_RECOGNIZE (` and `)`, may be there. Clauses mean what the standard says;
WITHIN is an addition that streams need. The first column of ORDER BY is the time; a batch can have
it in descending order. Variables without quotes are in upper case where `classifier()` returns
them. `match` has the other settings.
"""

from __future__ import annotations

import re
from dataclasses import replace

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_us
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.patterns.definition import Pattern, match
from millstream.pipelines.patterns.language import PatternError, identity_of
from millstream.pipelines.patterns.spec import RowOrder, RowsPerMatch

_CLAUSES = (
    ("partition", r"PARTITION\s+BY"),
    ("order", r"ORDER\s+BY"),
    ("measures", r"MEASURES"),
    ("rows", r"(?:ONE|ALL)\s+ROWS?\s+PER\s+MATCH"),
    ("skip", r"AFTER\s+MATCH\s+SKIP"),
    ("pattern", r"PATTERN"),
    ("within", r"WITHIN"),
    ("subset", r"SUBSET"),
    ("define", r"DEFINE"),
)
_START = re.compile("|".join(rf"(?P<{name}>\b{text}\b)" for name, text in _CLAUSES), re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_AROUND = re.compile(r"\s*MATCH_RECOGNIZE\s*\((.*)\)\s*;?\s*\Z", re.IGNORECASE | re.DOTALL)
_AS = re.compile(r"\s+AS\s+([A-Za-z_]\w*|`[^`]+`|\"[^\"]+\")\s*\Z", re.IGNORECASE)
_DEFINED = re.compile(r"\s*([A-Za-z_]\w*|\"[^\"]+\")\s+AS\s+", re.IGNORECASE)
_SUBSET = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*\(([^()]*)\)\s*\Z")
_NAME = re.compile(r"[A-Za-z_]\w*|`[^`]+`")
_ROWS: dict[str, RowsPerMatch] = {
    "": "one",
    "one": "one",
    "all": "all",
    "all show empty matches": "all",
    "all omit empty matches": "all omitting empty",
    "all with unmatched rows": "all with unmatched",
}


def recognize(
    text: str,
    *,
    order: RowOrder = "time",
    max_rows: int | None = None,
    stragglers: DropOrDivert = "drop",
    buckets: int = 16,
    count_as: str | None = None,
) -> Pattern:
    """The pattern of a MATCH_RECOGNIZE clause. Raises `ConfigError`, with a caret."""
    text = _QUOTED.sub(lambda it: it[0] if it[0][0] in "'\"`" else " " * len(it[0]), text)
    around = _AROUND.match(text)
    body = text if around is None else around[1]
    clauses = _split(body)
    for needed in ("order", "pattern"):
        if needed not in clauses:
            raise ConfigError(f"MATCH_RECOGNIZE needs a clause {needed.upper()}: {text.strip()}")
    ordered = _ordered(clauses["order"])
    time, *order_by = (name for name, _ in ordered)
    rows = " ".join(clauses.get("rows", "").lower().split())
    if rows not in _ROWS:
        raise ConfigError(f"rows per match: {rows!r} is not among {', '.join(_ROWS)[2:]}")
    found = match(
        _inside(clauses["pattern"]),
        key=[_name(it) for it in _list(clauses.get("partition", ""))],
        time=time,
        order=order,
        order_by=order_by,
        where=dict(_define(it) for it in _list(clauses.get("define", ""))),
        subsets=dict(_subset(it) for it in _list(clauses.get("subset", ""))),
        within=_interval(clauses["within"]) if "within" in clauses else None,
        skip=_skip(clauses.get("skip", "past last row")),
        rows="all",
        max_rows=max_rows,
        stragglers=stragglers,
        buckets=buckets,
        count_as=count_as,
    )
    measures = dict(_measure(it) for it in _list(clauses.get("measures", "")))
    descending = tuple(name for name, is_descending in ordered if is_descending)
    return replace(found, measures=measures, rows=_ROWS[rows], is_sql=True, descending=descending)


def _blank(text: str) -> str:
    """The text with blanks in place of everything in quotes."""
    return _QUOTED.sub(lambda it: " " * len(it[0]), text)


def _split(text: str) -> dict[str, str]:
    """The clauses by name."""
    blank = _blank(text)
    depth = 0
    depths = []
    for letter in blank:
        depth += (letter == "(") - (letter == ")")
        depths.append(depth)
    starts = [it for it in _START.finditer(blank) if depths[it.start()] == 0]
    first = starts[0].start() if starts else len(text)
    if blank[:first].strip():
        raise PatternError("unexpected text before the clauses", text, 0)
    clauses: dict[str, str] = {}
    last = -1
    names = [name for name, _ in _CLAUSES]
    for it, after in zip(starts, [*starts[1:], None], strict=True):
        name = str(it.lastgroup)
        if name in clauses:
            raise PatternError(f"{it[0]} is there twice", text, it.start())
        if names.index(name) < last:
            raise PatternError(f"{it[0]} must come earlier", text, it.start())
        last = names.index(name)
        content = text[it.end() : None if after is None else after.start()].strip()
        clauses[name] = f"{it[0].split()[0]} {content}" if name == "rows" else content
    return clauses


def _list(text: str) -> list[str]:
    """The parts between commas that are not within parentheses."""
    blank = _blank(text)
    depth, start, parts = 0, 0, []
    for place, letter in enumerate(blank):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [part.strip() for part in parts] if text.strip() else []


def _inside(text: str) -> str:
    if not (text.startswith("(") and text.endswith(")")):
        raise PatternError("PATTERN must be in parentheses", text, 0)
    return text[1:-1]


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise PatternError("expected the name of a column", text, 0)
    return text.strip("`")


def _ordered(text: str) -> list[tuple[str, bool]]:
    """The columns, and whether each is in descending order. One may be there twice, as the time
    and as the order of arrival; its first direction counts."""
    found = []
    directions: dict[str, bool] = {}
    for it in _list(text):
        name, *rest = it.split()
        direction = " ".join(rest).lower()
        if direction not in ("", "asc", "desc"):
            raise PatternError("after a column, ORDER BY has ASC or DESC", it, len(name) + 1)
        column = _name(name)
        found.append((column, directions.setdefault(column, direction == "desc")))
    return found


def _measure(text: str) -> tuple[str, str]:
    found = _AS.search(text)
    if found is None:
        raise PatternError("a measure needs a name: ... AS name", text, len(text))
    return found[1].strip('`"'), text[: found.start()]


def _define(text: str) -> tuple[str, str]:
    found = _DEFINED.match(text)
    if found is None:
        raise PatternError("a definition is: variable AS condition", text, 0)
    return found[1].strip('"'), text[found.end() :]


def _subset(text: str) -> tuple[str, list[str]]:
    found = _SUBSET.match(text)
    if found is None:
        raise PatternError("a subset is: name = (variable, ...)", text, 0)
    return identity_of(found[1]), [it.strip() for it in found[2].split(",")]


def _skip(text: str) -> str:
    return " ".join(text.lower().split())


def _interval(text: str) -> str:
    found = re.fullmatch(r"INTERVAL\s+'?\s*([^']*?)\s*'?\s*(\w*)", text, re.IGNORECASE)
    if found is None:
        raise PatternError("WITHIN needs an interval: INTERVAL '10' MINUTE", text, 0)
    words = f"{found[1]} {found[2]}".strip().lower()
    duration_us(words, "WITHIN")
    return words

"""The language of standing queries: its grammar, its tree, and the check against a schema.

    query      = and { OR and }
    and        = not { AND not }
    not        = NOT not | condition
    condition  = ( query )
               | column compare literal | literal compare column      = <> != < <= > >=
               | column [NOT] IN ( literal { , literal } )
               | column [NOT] BETWEEN literal AND literal
               | column IS [NOT] NULL
               | column                                               of type boolean
               | matches ( column , 'text' )
    column     = name { . name }                                      fields of structs
    text       = text_and { OR text_and }
    text_and   = text_not { [AND] text_not }
    text_not   = NOT text_not | ( text ) | word | word* | "words in this order"

Conditions have three truth values as in SQL: one on a null is unknown, except IS NULL; a query
matches where it is true. `matches` is sugar: a text query becomes a tree of `Term`s on its column.

The tree has no values. Its conditions refer to literals by the index of their token, so that one
tree serves all queries with equal keys of tokens (templates.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

from millstream.pipelines.standing.fields import name_of
from millstream.pipelines.standing.kinds import Kind
from millstream.pipelines.standing.lexing import QueryError, Token

DEPTH_MAX = 32  # of parentheses and NOT
CONDITIONS_MAX = 63  # in a query: the truth of all of them fits an integer
LISTED_MAX = 1_000  # literals in IN

TermKind: TypeAlias = Literal["word", "prefix", "phrase"]
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Compare:
    """column <operator> literal."""

    column: str
    kind: Kind
    operator: str
    literal: int
    tokens: tuple[int, int]  # the first and the last token, for messages


@dataclass(frozen=True)
class InList:
    """column IN (literals)."""

    column: str
    kind: Kind
    literals: tuple[int, ...]
    tokens: tuple[int, int]


@dataclass(frozen=True)
class IsNull:
    """column IS NULL."""

    column: str
    tokens: tuple[int, int]


@dataclass(frozen=True)
class IsTrue:
    """A boolean column as a condition."""

    column: str
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Term:
    """Whether a text has a word, a word with a prefix, or a phrase."""

    column: str
    kind: TermKind
    literal: int
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Not:
    child: Node


@dataclass(frozen=True)
class Both:
    """All of the children."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    """At least one of the children."""

    children: tuple[Node, ...]


Condition: TypeAlias = Compare | InList | IsNull | IsTrue | Term
Node: TypeAlias = Condition | Not | Both | Either


def parse(text: str, tokens: Sequence[Token], columns: Mapping[str, Kind | None]) -> Node:
    """The tree of a query. `columns` has the kind of each column of the event, None for a type that
    queries can only test for null. Raises `QueryError`."""
    return _Parser(text, tokens, columns).parse()


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(
        self, text: str, tokens: Sequence[Token], columns: Mapping[str, Kind | None]
    ) -> None:
        self._text = text
        self._tokens = tokens
        self._columns = columns
        self._at = 0
        self._depth = 0
        self._conditions = 0

    def parse(self) -> Node:
        if self._next.kind == "end":
            raise self._error("the query is empty", "Write a condition, such as price < 300")
        tree = self._query()
        if self._next.kind != "end":
            raise self._error(f"unexpected {self._shown}", "Join conditions with AND or OR")
        return tree

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    @property
    def _shown(self) -> str:
        token = self._next
        if token.kind == "end":
            return "end of the query"
        return repr(self._text[token.start : token.end])

    def _error(self, problem: str, advice: str = "", at: int | None = None) -> QueryError:
        token = self._tokens[self._at if at is None else at]
        return QueryError(self._text, token.start, problem, advice)

    def _take(self, value: str) -> bool:
        """Whether the next token is this keyword or operator; then it is consumed."""
        if self._next.kind in ("keyword", "operator") and self._next.value == value:
            self._at += 1
            return True
        return False

    def _expect(self, value: str, where: str) -> None:
        if not self._take(value):
            raise self._error(f"{value} expected {where}, not {self._shown}")

    def _query(self) -> Node:
        return self._joined(lambda: self._joined(self._not, "AND", Both), "OR", Either)

    def _joined(
        self, part: Callable[[], Node], keyword: str, node: type[Both] | type[Either]
    ) -> Node:
        children = [part()]
        while self._take(keyword):
            children.append(part())
        return children[0] if len(children) == 1 else node(tuple(children))

    def _nested(self, part: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} levels of parentheses and NOT")
        node = part()
        self._depth -= 1
        return node

    def _counted(self, node: Condition) -> Condition:
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise self._error(
                f"more than {CONDITIONS_MAX} conditions",
                "Use IN for lists of values, or several queries",
                node.tokens[0],
            )
        return node

    def _not(self) -> Node:
        if self._take("NOT"):
            return Not(self._nested(self._not))
        return self._condition()

    def _condition(self) -> Node:
        first = self._at
        if self._take("("):
            node = self._nested(self._query)
            self._expect(")", "after the conditions in parentheses")
            return node
        if self._next.kind == "name":
            if str(self._next.value).lower() == "matches" and self._follows("("):
                return self._matches()
            return self._of_column(first)
        if self._is_literal():
            return self._flipped(first)
        raise self._error(
            f"a condition expected, not {self._shown}", "Write a column first, as in price < 300"
        )

    def _follows(self, operator: str) -> bool:
        after = self._tokens[self._at + 1]
        return after.kind == "operator" and after.value == operator

    def _name(self) -> str:
        """A column, or a field of a struct."""
        first = self._at
        if self._next.kind != "name":
            raise self._error(f"a column expected, not {self._shown}")
        parts = [str(self._next.value)]
        self._at += 1
        while self._take("."):
            if self._next.kind != "name":
                raise self._error(f"a field expected after the point, not {self._shown}")
            parts.append(str(self._next.value))
            self._at += 1
        name, names = name_of(parts), list(self._columns)
        if name in self._columns:
            return name
        same = [it for it in names if it.lower() == name.lower()]
        if len(same) != 1:
            near = get_close_matches(name, names, 1)
            guess = f"Did you mean {near[0]}? " if near else ""
            problem = f"no column {name!r}"
            raise self._error(problem, f"{guess}Columns: {', '.join(names)}", first)
        return same[0]

    def _kind(self, name: str, first: int) -> Kind:
        kind = self._columns[name]
        if kind is None:
            fields = [it for it in self._columns if it.startswith(f"{name}.")]
            raise self._error(
                f"queries cannot use column {name!r}, because of its type",
                f"Use one of its fields: {', '.join(fields)}"
                if fields
                else "Convert it before matching, to a number, a string, a boolean, a date or a "
                "timestamp",
                first,
            )
        return kind

    def _column(self) -> tuple[str, Kind]:
        first = self._at
        name = self._name()
        return name, self._kind(name, first)

    def _of_column(self, first: int) -> Node:
        name = self._name()
        if self._take("IS"):
            is_negated = self._take("NOT")
            self._expect("NULL", "after IS")
            node: Node = self._counted(IsNull(name, (first, self._at - 1)))
            return Not(node) if is_negated else node
        kind = self._kind(name, first)
        is_negated = self._take("NOT")
        if self._take("IN"):
            node = self._in_list(first, name, kind)
        elif self._take("BETWEEN"):
            node = self._between(first, name, kind)
        elif is_negated:
            raise self._error(f"IN or BETWEEN expected after NOT, not {self._shown}")
        elif self._next.kind == "keyword" and self._next.value == "LIKE":
            raise self._error("queries have no LIKE", "Use matches(column, 'word*')")
        elif self._next.kind == "operator" and self._next.value in COMPARISONS:
            node = self._comparison(first, name, kind)
        elif kind == "boolean":
            node = self._counted(IsTrue(name, (first, self._at - 1)))
        else:
            raise self._error(
                f"a comparison expected after {name}, not {self._shown}",
                "Use =, <>, <, <=, >, >=, IN, BETWEEN or IS NULL",
            )
        return Not(node) if is_negated else node

    def _is_literal(self) -> bool:
        token = self._next
        is_word = token.kind == "keyword" and token.value in ("TRUE", "FALSE", "TIMESTAMP", "DATE")
        return is_word or token.kind in ("number", "string")

    def _literal(self, where: str) -> int:
        """The index of a literal; `TIMESTAMP '...'` and `DATE '...'` mean the string alone."""
        token = self._next
        if token.kind == "keyword" and token.value == "NULL":
            raise self._error("a comparison with NULL is never true", "Use IS NULL or IS NOT NULL")
        if token.kind == "name":
            raise self._error(
                f"a literal expected {where}, not the name {self._shown}",
                "Write text in '...'; columns are compared with literals only",
            )
        if not self._is_literal():
            raise self._error(f"a literal expected {where}, not {self._shown}")
        if token.kind == "keyword" and token.value in ("TIMESTAMP", "DATE"):
            self._at += 1
            if self._next.kind != "string":
                raise self._error(f"a string expected after {token.value}, not {self._shown}")
        self._at += 1
        return self._at - 1

    def _comparison(self, first: int, name: str, kind: Kind) -> Condition:
        operator = str(self._next.value)
        self._at += 1
        literal = self._literal(f"after {operator}")
        return self._counted(Compare(name, kind, operator, literal, (first, self._at - 1)))

    def _flipped(self, first: int) -> Condition:
        literal = self._literal("before a comparison")
        operator = str(self._next.value)
        if self._next.kind != "operator" or operator not in COMPARISONS:
            raise self._error(f"a comparison expected after the literal, not {self._shown}")
        self._at += 1
        name, kind = self._column()
        operator = _FLIPPED.get(operator, operator)
        return self._counted(Compare(name, kind, operator, literal, (first, self._at - 1)))

    def _in_list(self, first: int, name: str, kind: Kind) -> Condition:
        self._expect("(", "after IN")
        literals = [self._literal("in the list of IN")]
        while self._take(","):
            literals.append(self._literal("in the list of IN"))
        self._expect(")", "after the list of IN")
        if len(literals) > LISTED_MAX:
            raise self._error(f"more than {LISTED_MAX} values in IN", "", first)
        return self._counted(InList(name, kind, tuple(literals), (first, self._at - 1)))

    def _between(self, first: int, name: str, kind: Kind) -> Node:
        low = self._literal("after BETWEEN")
        self._expect("AND", "between the bounds of BETWEEN")
        high = self._literal("after AND")
        tokens = first, self._at - 1
        least = self._counted(Compare(name, kind, ">=", low, tokens))
        return Both((least, self._counted(Compare(name, kind, "<=", high, tokens))))

    def _matches(self) -> Node:
        self._at += 2
        at = self._at
        name, kind = self._column()
        if kind != "text":
            raise self._error(f"matches needs a column of text, and {name} is {kind}", "", at)
        self._expect(",", "after the column of matches")
        if not self._take("'"):
            raise self._error(f"a text query expected, not {self._shown}", "matches(text, 'tea')")
        node = self._text_query(name)
        self._expect("'", "at the end of the text query")
        self._expect(")", "after the text query")
        return node

    def _text_query(self, name: str) -> Node:
        def both() -> Node:
            children = [self._text_not(name)]
            while self._take("AND") or not self._ends_text():
                children.append(self._text_not(name))
            return children[0] if len(children) == 1 else Both(tuple(children))

        return self._joined(both, "OR", Either)

    def _ends_text(self) -> bool:
        token = self._next
        return token.kind in ("operator", "keyword", "end") and token.value in ("'", ")", "OR", "")

    def _text_not(self, name: str) -> Node:
        if self._take("NOT"):
            return Not(self._nested(lambda: self._text_not(name)))
        if self._take("("):
            node = self._nested(lambda: self._text_query(name))
            self._expect(")", "after the words in parentheses")
            return node
        at, kind = self._at, self._next.kind
        if kind not in ("word", "prefix", "phrase"):
            raise self._error(
                f"a word expected, not {self._shown}", 'Words, "phrases" and prefixes* are possible'
            )
        self._at += 1
        return self._counted(Term(name, kind, at, (at, at)))  # type: ignore[arg-type]  # checked

"""SQL expressions in conditions and measures, parsed to a tree.

The grammar is that of Spark's expressions as far as it is common: operators, function calls, CASE,
CAST, IN, BETWEEN, LIKE, IS NULL, intervals. The parser exists to find what reads the match:

    small.amount                         a column of the last row of a variable
    prev(price), next(price, 2)          neighbours of a row
    first(a.price), last(a.price, 1)     a row of the match
    count(*), count(a), sum(a.price)     aggregates of rows of the match; in measures also
                                         array_agg, and count(distinct a.price)
    classifier(), match_number()

Everything else is handed to Spark as text, so each node has its place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from millstream.pipelines.patterns.language import DEPTH_MAX, PatternError, identity_of

AGGREGATES = ("count", "sum", "avg", "min", "max", "array_agg")
NAVIGATIONS = ("prev", "next", "first", "last")
FUNCTIONS = (*AGGREGATES, *NAVIGATIONS, "classifier", "match_number")
OFFSET_MAX = 100  # of FIRST, LAST, PREV and NEXT

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
      | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*|`[^`]+`)
      | (?P<symbol><=>|<>|<=|>=|!=|==|\|\||::|[-+*/%<>=(),.\[\]])""",
    re.VERBOSE,
)
_COMPARISONS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
_NOT_COLUMNS = frozenset(
    [
        "and",
        "or",
        "not",
        "is",
        "null",
        "in",
        "like",
        "rlike",
        "ilike",
        "between",
        "case",
        "when",
        "then",
        "else",
        "end",
        "true",
        "false",
        "interval",
        "cast",
        "as",
        "distinct",
        "from",
    ]
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "name" else ""


@dataclass(frozen=True)
class Node:
    """A part of an expression.

    kind            args, and what `name` is
    literal         -
    column          the column, or the path to a field of a struct
    member          the column; `variable` is the key of its variable
    rows            -; `variable` as above, or None for all: the argument of count(*), count(a)
    call, cast      arguments; the function
    case, in, ...   operands; all that only Spark evaluates
    not, negative   operand
    and, or, compare, arithmetic    two operands; the operator
    is_null, is_not_null            operand
    navigate        what is read; the function, with `offset`
    aggregate       what is aggregated; the function, maybe with `is_distinct`
    classifier      -; `variable`
    match_number    -
    """

    kind: str
    start: int
    end: int
    args: tuple[Node, ...] = ()
    name: str = ""
    variable: str | None = None
    offset: int = 0
    is_final: bool | None = None  # with FINAL: True, with RUNNING: False
    qualifiers: tuple[tuple[int, int], ...] = field(default=())
    is_distinct: bool = False  # an aggregate of distinct values


def tokens_of(text: str) -> list[Token]:
    """The tokens of SQL text, and one of kind `end`. Raises `PatternError`."""
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PatternError(f"unexpected {text[at]!r}", text, at)
        # Spark has no fields of strings: before a point stands a name in quotes.
        is_name = match[0].startswith('"') and text[match.end() :].lstrip().startswith(".")
        if match.lastgroup != "space":
            kind = "name" if is_name else str(match.lastgroup)
            found.append(Token(kind, match[0], at, match.end()))
        at = match.end()
    return [*found, Token("end", "the end", len(text.rstrip()), len(text))]


def reads_match(text: str, variables: Mapping[str, object]) -> bool:
    """Whether the text names a variable, or a function that reads the match."""
    tokens = tokens_of(text)
    for before, it, after in zip([tokens[-1], *tokens], tokens, tokens[1:], strict=False):
        if before.text == ".":
            continue
        if it.word in FUNCTIONS and after.text == "(":
            return True
        if after.text == "." and it.kind == "name" and key_of(it) in variables:
            return True
    return False


def key_of(token: Token) -> str:
    """What identifies a variable."""
    is_quoted = token.text.startswith(("`", '"'))
    return token.text[1:-1] if is_quoted else identity_of(token.text)


def parse_expression(text: str, variables: Mapping[str, object]) -> Node:
    """The tree of an expression. Raises `PatternError`."""
    return _Parser(text, variables).parse()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for it in node.args:
        yield from walk(it)


def row_text(text: str, node: Node) -> str:
    """The node as text for Spark, without the variables in front of columns."""
    return splice(text, node, [])


def splice(text: str, node: Node, replaced: Iterable[tuple[int, int, str]]) -> str:
    """The node as text, without variables in front of columns, and with these ranges replaced."""
    spans = [(start, end, "") for it in walk(node) for start, end in it.qualifiers]
    parts, at = [], node.start
    # Of ranges that begin at the same place, the longest counts.
    for start, end, new in sorted([*spans, *replaced], key=lambda it: (it[0], -it[1])):
        if start >= at:
            parts += [text[at:start], new]
            at = end
    return "".join([*parts, text[at : node.end]])


class _Parser:
    def __init__(self, text: str, variables: Mapping[str, object]) -> None:
        self._text = text
        self._variables = variables
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._peek.kind == "end":
            raise self._error("an expression is missing")
        node = self._or()
        if self._peek.kind != "end":
            raise self._error(f"unexpected {self._peek.text!r}")
        return node

    @property
    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._peek
        if token.kind == "end":
            raise self._error("the expression ends too early")
        self._at += 1
        return token

    def _next_is(self, *texts: str) -> bool:
        token = self._peek
        return (token.word or token.text) in texts and token.kind not in ("string", "end")

    def _accept(self, *texts: str) -> bool:
        if self._next_is(*texts):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        if not self._next_is(text):
            raise self._error(f"expected {text!r} before {self._peek.text!r}")
        return self._take()

    def _error(self, problem: str, place: int | None = None) -> PatternError:
        return PatternError(problem, self._text, self._peek.start if place is None else place)

    @property
    def _end(self) -> int:
        return self._tokens[self._at - 1].end

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} expressions within each other")
        node = self._and()
        while self._accept("or"):
            right = self._and()
            node = Node("or", node.start, right.end, (node, right), "or")
        self._depth -= 1
        return node

    def _and(self) -> Node:
        node = self._not()
        while self._accept("and"):
            right = self._not()
            node = Node("and", node.start, right.end, (node, right), "and")
        return node

    def _not(self) -> Node:
        if self._next_is("not"):
            start = self._take().start
            inner = self._not()
            return Node("not", start, inner.end, (inner,))
        return self._comparison()

    def _comparison(self) -> Node:
        node = self._sum()
        while True:
            if self._next_is(*_COMPARISONS):
                operator = self._take().text
                right = self._sum()
                name = {"==": "=", "!=": "<>"}.get(operator, operator)
                node = Node("compare", node.start, right.end, (node, right), name)
            elif self._accept("is"):
                node = self._is(node)
            elif self._next_is("not", "in", "between", "like", "rlike", "ilike"):
                node = self._set_or_range(node)
            else:
                return node

    def _is(self, node: Node) -> Node:
        is_not = self._accept("not")
        if self._accept("distinct"):
            self._expect("from")
            right = self._sum()
            return Node("other", node.start, right.end, (node, right), "is distinct from")
        if self._accept("true", "false"):
            return Node("other", node.start, self._end, (node,), "is true")
        self._expect("null")
        return Node("is_not_null" if is_not else "is_null", node.start, self._end, (node,))

    def _set_or_range(self, node: Node) -> Node:
        is_not = self._accept("not")
        token = self._take()
        if token.word == "between":
            low = self._sum()
            self._expect("and")
            high = self._sum()
            above = Node("compare", node.start, low.end, (node, low), ">=")
            below = Node("compare", node.start, high.end, (node, high), "<=")
            found = Node("and", node.start, high.end, (above, below), "between")
        elif token.word == "in":
            self._expect("(")
            among = self._arguments()
            found = Node("other", node.start, self._end, (node, *among), "in")
        elif token.word in ("like", "rlike", "ilike"):
            right = self._sum()
            found = Node("other", node.start, right.end, (node, right), "like")
        else:
            raise self._error(f"unexpected {token.text!r}", token.start)
        return Node("not", node.start, found.end, (found,)) if is_not else found

    def _sum(self) -> Node:
        node = self._product()
        while self._next_is("+", "-", "||"):
            operator = self._take().text
            right = self._product()
            kind = "other" if operator == "||" else "arithmetic"
            node = Node(kind, node.start, right.end, (node, right), operator)
        return node

    def _product(self) -> Node:
        node = self._unary()
        while self._next_is("*", "/", "%"):
            operator = self._take().text
            right = self._unary()
            kind = "other" if operator == "%" else "arithmetic"
            node = Node(kind, node.start, right.end, (node, right), operator)
        return node

    def _unary(self) -> Node:
        if self._next_is("-", "+"):
            token = self._take()
            inner = self._unary()
            kind = "negative" if token.text == "-" else "positive"
            return Node(kind, token.start, inner.end, (inner,))
        node = self._primary()
        while self._next_is("[", "::", "."):
            if self._accept("::", "."):
                self._take()
                node = Node("other", node.start, self._end, (node,), "a field or a cast")
            else:
                self._take()
                index = self._or()
                self._expect("]")
                node = Node("other", node.start, self._end, (node, index), "[]")
        return node

    def _primary(self) -> Node:
        token = self._take()
        if token.kind in ("number", "string"):
            return Node("literal", token.start, token.end)
        if token.text == "(":
            inner = self._or()
            self._expect(")")
            # The parentheses belong to the text of the node.
            return Node(
                inner.kind if inner.kind in ("and", "or", "not") else "group",
                token.start,
                self._end,
                inner.args if inner.kind in ("and", "or", "not") else (inner,),
                inner.name,
            )
        if token.kind != "name":
            raise self._error(f"unexpected {token.text!r}", token.start)
        return self._named(token)

    def _named(self, token: Token) -> Node:
        word = token.word
        if word == "case":
            return self._case(token)
        if word == "interval":
            return self._interval(token)
        if word in ("true", "false", "null"):
            return Node("literal", token.start, token.end)
        if word in ("running", "final") and self._peek.word in (*NAVIGATIONS, *AGGREGATES):
            inner = self._named(self._take())
            return self._with_semantics(inner, token)
        if self._next_is("(") and not token.text.startswith("`"):
            return self._call(token)
        if word in _NOT_COLUMNS:
            raise self._error(f"unexpected {token.text!r}", token.start)
        return self._column(token)

    def _with_semantics(self, inner: Node, token: Token) -> Node:
        if inner.kind not in ("navigate", "aggregate") or inner.name in ("prev", "next"):
            raise self._error(
                f"{token.text} belongs before FIRST, LAST or an aggregate", token.start
            )
        is_final = token.word == "final"
        return Node(
            inner.kind, token.start, inner.end, inner.args, inner.name, inner.variable,
            inner.offset, is_final, is_distinct=inner.is_distinct,
        )  # fmt: skip

    def _column(self, token: Token) -> Node:
        key = key_of(token)
        is_member = key in self._variables and self._next_is(".")
        qualifiers: tuple[tuple[int, int], ...] = ()
        if is_member:
            dot = self._take()
            qualifiers = ((token.start, dot.end),)
            if self._next_is("*"):
                self._take()
                return Node("rows", token.start, self._end, variable=key)
            token = self._take()
            if token.kind != "name":
                raise self._error(f"expected a column before {token.text!r}", token.start)
        start = qualifiers[0][0] if qualifiers else token.start
        name = token.text.strip("`")
        while self._next_is("."):
            self._take()
            name += "." + self._take().text.strip("`")
        return Node(
            "member" if is_member else "column",
            start,
            self._end,
            name=name,
            variable=key if is_member else None,
            qualifiers=qualifiers,
        )

    def _case(self, token: Token) -> Node:
        parts = []
        if not self._next_is("when"):
            parts.append(self._or())
        while self._accept("when"):
            parts.append(self._or())
            self._expect("then")
            parts.append(self._or())
        if self._accept("else"):
            parts.append(self._or())
        self._expect("end")
        return Node("other", token.start, self._end, tuple(parts), "case")

    def _interval(self, token: Token) -> Node:
        self._accept("-")
        self._take()
        while self._peek.kind == "name" and self._peek.word not in _NOT_COLUMNS:
            self._take()
        return Node("interval", token.start, self._end)

    def _call(self, token: Token) -> Node:
        opened = self._take()
        word = token.word
        if word == "cast":
            inner = self._or()
            self._expect("as")
            while not self._next_is(")"):
                if self._accept("("):
                    self._arguments()
                else:
                    self._take()
            self._take()
            return Node("other", token.start, self._end, (inner,), "cast")
        if word in AGGREGATES:
            return self._aggregate(token)
        args = self._arguments()
        if word in NAVIGATIONS:
            return self._navigation(token, args)
        if word == "match_number":
            if args:
                raise self._error("match_number() has no arguments", opened.start)
            return Node("match_number", token.start, self._end)
        if word == "classifier":
            return self._classifier(token, args)
        return Node("other", token.start, self._end, args, word)

    def _arguments(self) -> tuple[Node, ...]:
        args: list[Node] = []
        if self._accept(")"):
            return ()
        args.append(self._or())
        while self._accept(","):
            args.append(self._or())
        self._expect(")")
        return tuple(args)

    def _aggregate(self, token: Token) -> Node:
        is_distinct = self._accept("distinct")
        arg: Node
        peeked = self._peek
        if token.word == "count" and (self._accept("*") or self._next_is(")")):
            arg = Node("rows", peeked.start, peeked.start)
        elif token.word == "count" and self._is_variable_alone():
            self._take()
            arg = Node("rows", peeked.start, peeked.end, variable=key_of(peeked))
        else:
            arg = self._or()
        if self._next_is(","):
            raise self._error(f"{token.text} has one argument")
        self._expect(")")
        if arg.kind == "rows" and (is_distinct or token.word != "count"):
            raise self._error(f"{token.text} needs a column", arg.start)
        self._check_inner(arg, token, ())
        end = self._end
        return Node("aggregate", token.start, end, (arg,), token.word, is_distinct=is_distinct)

    def _is_variable_alone(self) -> bool:
        token = self._peek
        after = self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        return token.kind == "name" and key_of(token) in self._variables and after.text == ")"

    def _navigation(self, token: Token, args: tuple[Node, ...]) -> Node:
        word = token.word
        if not 1 <= len(args) <= 2:
            raise self._error(f"{token.text} has one or two arguments", token.start)
        offset = 1 if word in ("prev", "next") else 0
        if len(args) == 2:
            number = self._text[args[1].start : args[1].end]
            if not number.isdecimal():
                raise self._error("the offset must be a whole number", args[1].start)
            offset = int(number)
            if offset > OFFSET_MAX:
                raise self._error(f"an offset of at most {OFFSET_MAX}", args[1].start)
        inner_allowed = ("first", "last") if word in ("prev", "next") else ()
        self._check_inner(args[0], token, inner_allowed)
        return Node("navigate", token.start, self._end, args[:1], word, None, offset)

    def _check_inner(self, arg: Node, token: Token, allowed: tuple[str, ...]) -> None:
        """Navigation of navigation: only PREV and NEXT of FIRST and LAST; one variable each."""
        variables = {it.variable for it in walk(arg) if it.kind in ("member", "rows", "column")}
        for it in walk(arg):
            is_allowed = it is arg and it.kind == "navigate" and it.name in allowed
            if it.kind in ("navigate", "aggregate", "match_number") and not is_allowed:
                raise self._error(
                    f"{it.name or it.kind} within {token.text}: only PREV and NEXT may contain "
                    "FIRST or LAST",
                    it.start,
                )
        if len(variables) > 1:
            raise self._error(f"{token.text} reads rows of several variables", arg.start)
        if not any(it.kind in ("member", "column", "rows", "classifier") for it in walk(arg)):
            raise self._error(f"{token.text} must name a column", arg.start)

    def _classifier(self, token: Token, args: tuple[Node, ...]) -> Node:
        variable = None
        if args:
            key = identity_of(args[0].name)
            if len(args) > 1 or args[0].kind != "column" or key not in self._variables:
                raise self._error("classifier() takes a variable of the pattern", args[0].start)
            variable = key
        return Node("classifier", token.start, self._end, variable=variable)

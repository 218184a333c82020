"""Queries as shapes and parameters: what a query has in common with others, and its own values.

    category = 'bike' AND price < 300       shape  category = ? AND price < ?
                                            parameters  'bike', 300

A query is brought into negation normal form: NOT is pushed to the conditions, which have negations
of their own (<, >=; IN, NOT IN; has, lacks). In three-valued logic this is exact, and where no NOT
is left, unknown can be treated as false: a query is true where enough conditions are true. So only
the rows where a condition is true count, never those where it is unknown.

    Template    the shape of queries with equal keys of tokens, and where their literals are
    Shape       the tree over conditions without values; equal shapes are matched together
    Query       a query with its parameters, one entry for each condition of the shape
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from millstream.pipelines.standing.fields import kinds_in
from millstream.pipelines.standing.kinds import Kind, LiteralError, Value, value_of
from millstream.pipelines.standing.lexing import QueryError, Token, tokens_of
from millstream.pipelines.standing.syntax import (
    Both,
    Compare,
    Condition,
    Either,
    InList,
    IsNull,
    IsTrue,
    Node,
    Not,
    parse,
)

TEMPLATES_MAX = 10_000  # that a compiler keeps
RANGES = ("<", "<=", ">", ">=")
_NEGATED = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "in": "not in",
    "null": "not null",
    "has": "lacks",
}
# Conditions by which matching queries are found, the best first.
_INDEXED = ("=", "in", "has", *RANGES)


class Term(NamedTuple):
    """A word, a prefix, or the words of a phrase."""

    kind: str
    words: tuple[str, ...]


Parameter: TypeAlias = Value | tuple[Value, ...] | Term | None


class Leaf(NamedTuple):
    """A condition of a shape: on a column of a kind, by an operator."""

    column: str
    kind: Kind
    operator: str


class Group(NamedTuple):
    """Nodes of a shape's tree that must all be true, or of which one must."""

    needs: Literal["all", "any"]
    children: tuple[Tree, ...]


Tree: TypeAlias = int | Group  # the number of a leaf, or a group


@dataclass(frozen=True)
class Shape:
    """Queries that differ in values only."""

    leaves: tuple[Leaf, ...]
    tree: Tree

    @cached_property
    def options(self) -> tuple[frozenset[int], ...]:
        """Sets of leaves: in each of them, a leaf is true for every row that matches. Candidates
        can be found by any of them; without one, every row is a candidate."""
        return tuple(_options(self.tree, self.leaves))

    @property
    def is_indexed(self) -> bool:
        return bool(self.options)

    @cached_property
    def is_conjunction(self) -> bool:
        """Whether all leaves are true for a row that matches."""
        return _is_conjunction(self.tree)

    def text(self) -> str:
        """The shape for people: category = ? AND price < ?."""
        return _shape_text(self.tree, self.leaves)


@dataclass(frozen=True)
class _Source:
    """Where a leaf has its values: the tokens of its literals, and all of its tokens."""

    literals: tuple[int, ...]
    tokens: tuple[int, int]
    is_negated: bool
    constant: int | None = None


@dataclass(frozen=True)
class Template:
    """A shape, and where the literals of its leaves are among the tokens of a query."""

    shape: Shape
    sources: tuple[_Source, ...]
    tree: Node  # as written


@dataclass(frozen=True)
class Query:
    """A query that was checked against a schema."""

    text: str
    template: Template
    parameters: tuple[Parameter, ...]

    @property
    def shape(self) -> Shape:
        return self.template.shape

    def labels(self) -> list[str]:
        """The conditions as written, one for each leaf of the shape; words with their column."""
        tokens = tokens_of(self.text)
        return [
            _label(self.text, tokens, leaf, source)
            for leaf, source in zip(self.shape.leaves, self.template.sources, strict=True)
        ]


class Compiler:
    """Checks queries against the schema of the events. Queries of known form are not parsed."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.columns: Mapping[str, Kind | None] = kinds_in(schema)
        self._templates: dict[tuple[str, ...], Template] = {}
        self._shapes: dict[Shape, Shape] = {}

    def compile(self, text: str) -> Query:
        """Raises `QueryError`."""
        tokens = tokens_of(text)
        key = tuple([it.key for it in tokens])
        template = self._templates.get(key)
        if template is None:
            template = self._template(text, tokens)
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[key] = template
        return Query(text, template, _parameters(text, tokens, template))

    def _template(self, text: str, tokens: Sequence[Token]) -> Template:
        tree = parse(text, tokens, self.columns)
        leaves: list[Leaf] = []
        sources: list[_Source] = []
        normal = _normal(tree, False, leaves, sources)
        shape = Shape(tuple(leaves), normal)
        return Template(self._shapes.setdefault(shape, shape), tuple(sources), tree)


def _normal(node: Node, is_negated: bool, leaves: list[Leaf], sources: list[_Source]) -> Tree:
    """The tree without NOT; appends its leaves, in their order."""
    if isinstance(node, Not):
        return _normal(node.child, not is_negated, leaves, sources)
    if isinstance(node, Both | Either):
        needs: Literal["all", "any"] = "all" if isinstance(node, Both) != is_negated else "any"
        children: list[Tree] = []
        for it in node.children:
            child = _normal(it, is_negated, leaves, sources)
            is_same = isinstance(child, Group) and child.needs == needs
            children += child.children if is_same else [child]  # type: ignore[union-attr]
        return Group(needs, tuple(children))
    operator, kind, literals, constant = _leaf_of(node)
    leaves.append(Leaf(node.column, kind, _NEGATED[operator] if is_negated else operator))
    sources.append(_Source(literals, node.tokens, is_negated, constant))
    return len(leaves) - 1


def _leaf_of(node: Condition) -> tuple[str, Kind, tuple[int, ...], int | None]:
    """The operator, the kind, the tokens of the literals, and a value that is no literal."""
    if isinstance(node, Compare):
        return node.operator, node.kind, (node.literal,), None
    if isinstance(node, InList):
        return "in", node.kind, node.literals, None
    if isinstance(node, IsNull):
        return "null", "text", (), None
    if isinstance(node, IsTrue):
        return "=", "boolean", (), 1
    return "has", "text", (node.literal,), None


def _parameters(text: str, tokens: Sequence[Token], template: Template) -> tuple[Parameter, ...]:
    return tuple(
        [
            _parameter(text, tokens, leaf, source)
            for leaf, source in zip(template.shape.leaves, template.sources, strict=True)
        ]
    )


def _parameter(text: str, tokens: Sequence[Token], leaf: Leaf, source: _Source) -> Parameter:
    if source.constant is not None:
        return source.constant
    if leaf.operator in ("has", "lacks"):
        token = tokens[source.literals[0]]
        words = token.value if isinstance(token.value, tuple) else (token.value,)
        return Term(token.kind, words)
    if leaf.operator in ("null", "not null"):
        return None
    if leaf.operator in ("in", "not in"):
        values = [_value(text, tokens[it], leaf, "in") for it in source.literals]
        return tuple(dict.fromkeys(values))
    return _value(text, tokens[source.literals[0]], leaf, leaf.operator)


def _value(text: str, token: Token, leaf: Leaf, operator: str) -> Value:
    try:
        return value_of(leaf.kind, operator, str(token.value), token.kind)
    except LiteralError as error:
        raise QueryError(text, token.start, f"{leaf.column}: {error}") from None


def _label(text: str, tokens: Sequence[Token], leaf: Leaf, source: _Source) -> str:
    first, last = source.tokens
    written = " ".join(text[tokens[first].start : tokens[last].end].split())
    if leaf.operator in ("has", "lacks"):
        written = f"{leaf.column}: {written}"
    return f"NOT {written}" if source.is_negated else written


def _options(tree: Tree, leaves: Sequence[Leaf]) -> list[frozenset[int]]:
    if isinstance(tree, int):
        return [frozenset((tree,))] if leaves[tree].operator in _INDEXED else []
    found = [_options(it, leaves) for it in tree.children]
    if tree.needs == "all":
        return [it for options in found for it in options]
    if not all(found):
        return []
    best = [min(it, key=lambda option: _rank(option, leaves)) for it in found]
    return [frozenset().union(*best)]


def _rank(option: frozenset[int], leaves: Sequence[Leaf]) -> int:
    """The place of the worst leaf of an option among the operators."""
    return max(_INDEXED.index(leaves[it].operator) for it in option)


def _is_conjunction(tree: Tree) -> bool:
    if isinstance(tree, int):
        return True
    return tree.needs == "all" and all(isinstance(it, int) for it in tree.children)


def _shape_text(tree: Tree, leaves: Sequence[Leaf], inside: bool = False) -> str:
    if isinstance(tree, int):
        leaf = leaves[tree]
        if leaf.operator in ("null", "not null"):
            return f"{leaf.column} IS {leaf.operator.upper()}"
        return f"{leaf.column} {leaf.operator.upper()} ?"
    joint = " AND " if tree.needs == "all" else " OR "
    text = joint.join(_shape_text(it, leaves, True) for it in tree.children)
    return f"({text})" if inside else text

"""Shapes, parameters, labels, and by which conditions candidates are found."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.standing import templates
from millstream.pipelines.standing.lexing import QueryError
from millstream.pipelines.standing.templates import Compiler, Term
from tests.pipelines.standing.drawing import SCHEMA


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("n = 1 AND x < 2", "n = ? AND x < ?"),
        ("NOT (n = 1 AND x < 2)", "n <> ? OR x >= ?"),
        ("NOT (n BETWEEN 1 AND 2 OR sold)", "(n < ? OR n > ?) AND sold <> ?"),
        ("n IN (1, 2) AND NOT city IN ('a')", "n IN ? AND city NOT IN ?"),
        ("n IS NULL OR NOT n IS NULL", "n IS NULL OR n IS NOT NULL"),
        ("matches(text, 'a \"b c\" NOT d*')", "text HAS ? AND text HAS ? AND text LACKS ?"),
    ],
)
def test_shape_has_no_values_and_no_negations(text: str, shape: str) -> None:
    assert Compiler(SCHEMA).compile(text).shape.text() == shape


def test_queries_that_differ_in_values_share_their_shape_and_are_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = Compiler(SCHEMA)
    first = compiler.compile("n = 1 AND matches(text, 'tea')")
    monkeypatch.setattr(templates, "parse", None)
    second = compiler.compile("n = 2 and matches(text, 'leaf')")
    assert second.shape is first.shape
    assert second.parameters == (2, Term("word", ("leaf",)))


def test_lists_and_terms_of_any_length_share_their_shape() -> None:
    compiler = Compiler(SCHEMA)
    first = compiler.compile("n IN (1, 2, 2) AND matches(text, 'tea')")
    second = compiler.compile("n IN (3) AND matches(text, '\"green leaf\"')")
    assert second.shape is first.shape
    assert first.parameters[0] == (1, 2)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("n = 1 AND x < 2 AND city <> 'a'", [{0}, {1}]),
        ("n = 1 OR x < 2", [{0, 1}]),
        ("(n = 1 AND x < 2) OR matches(text, 'a')", [{0, 2}]),
        ("n = 1 OR city <> 'a'", []),
        ("NOT matches(text, 'a')", []),
        ("n IS NULL", []),
    ],
)
def test_options_are_conditions_of_which_one_must_be_true(
    text: str, options: list[set[int]]
) -> None:
    shape = Compiler(SCHEMA).compile(text).shape
    assert list(shape.options) == options
    assert shape.is_indexed == bool(options)


def test_labels_are_the_conditions_as_written() -> None:
    text = "NOT (n  BETWEEN 1 AND 2) AND sold AND matches(text, 'tea \"green leaf\" NOT bag*')"
    query = Compiler(SCHEMA).compile(text)
    between = "NOT n BETWEEN 1 AND 2"
    assert query.labels() == [
        between,
        between,
        "sold",
        "text: tea",
        'text: "green leaf"',
        "NOT text: bag*",
    ]


def test_literal_error_has_the_column_and_the_place() -> None:
    with pytest.raises(QueryError) as caught:
        Compiler(SCHEMA).compile("x < 1 AND n = 'a'")
    assert caught.value.problem.startswith("n: the column is a number")
    assert caught.value.place == 14


def test_columns_with_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="rename one"):
        Compiler(pa.schema([("a", pa.int32()), ("a", pa.int64())]))

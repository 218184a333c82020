"""Avro schemas from JSON: names, logical types, and what is no schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.client.avro_schema import NO_DEFAULT, BadSchema, parse_schema
from tests.pipelines.reading.decoding.avro_values import logical, record


def parse(schema: Any, *references: Any) -> Any:
    return parse_schema(json.dumps(schema), [json.dumps(it) for it in references])


def test_names_are_found_in_their_namespace() -> None:
    inner = record("Inner", x="int") | {"aliases": ["Old", "other.Old"]}
    schema = record("shop.Outer", a=inner, b="Inner", c="shop.Inner", d=["null", "Inner"])
    outer = parse(schema)
    assert outer.name == "shop.Outer"
    a, b, c, d = (it.type for it in outer.fields)
    assert a is b is c is d.items[1]
    assert a.name == "shop.Inner"
    assert a.short_name == "Inner"
    assert a.aliases == ("shop.Old", "other.Old")


def test_type_may_contain_itself() -> None:
    tree = parse(record("Tree", next=["null", "Tree"]))
    assert tree.fields[0].type.items[1] is tree


def test_references_are_known_types() -> None:
    outer = parse(record("Outer", a="shop.Inner"), record("shop.Inner", x="int"))
    assert outer.fields[0].type.name == "shop.Inner"


def test_fields_have_aliases_and_defaults() -> None:
    fields = parse(record(a={"type": "int", "default": None, "aliases": ["b"]}, c="int")).fields
    assert [(it.aliases, it.default) for it in fields] == [(("b",), None), ((), NO_DEFAULT)]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (logical("int", "date"), "date"),
        (logical("string", "date"), ""),
        (logical("long", "something"), ""),
        (logical("bytes", "decimal", precision=4, scale=2), "decimal"),
        (logical("bytes", "decimal"), ""),
        (logical("bytes", "decimal", precision=2, scale=4), ""),
        ({"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}, "uuid"),
        ({"type": "fixed", "name": "f", "size": 15, "logicalType": "uuid"}, ""),
        ({"type": {"type": "string", "logicalType": "uuid"}}, "uuid"),
    ],
)
def test_logical_type_counts_where_it_fits(schema: Any, expected: str) -> None:
    assert parse(schema).logical == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (record(a="Nothing"), "names the type Nothing"),
        (["int", "int"], "two branches of a kind"),
        (["int", ["string"]], "two branches of a kind"),
        ({"type": "record", "name": "r"}, "lacks what it needs: KeyError"),
        (7, "lacks what it needs"),
        (record("r", a=record("r", b="int")), "defines r twice"),
        ({"type": "fixed", "name": "f", "size": -1}, "negative size"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}] * 2},
            "two fields of one name",
        ),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, expected: str) -> None:
    with pytest.raises(BadSchema, match=expected):
        parse(schema)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(BadSchema, match="is not JSON"):
        parse_schema("{")

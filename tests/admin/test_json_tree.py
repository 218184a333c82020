"""JSON trees: exact numbers, duplicate keys, limits."""

from __future__ import annotations

import json

import pytest

from millstream.admin.json_tree import NODES_MAX, Node, parse_json, plain, pretty, tree


def test_numbers_stay_as_they_were_written() -> None:
    text = '{"id": 12345678901234567890, "price": 1.10, "tiny": 1e-400}'
    nodes = tree(parse_json(text))
    assert [it.text for it in nodes if it.kind == "number"] == [
        "12345678901234567890",
        "1.10",
        "1e-400",
    ]
    assert "1.10" in pretty(parse_json(text))


def test_duplicate_keys_are_all_shown() -> None:
    nodes = tree(parse_json('{"a": 1, "a": 2}'))
    assert [(it.label, it.text) for it in nodes if it.label == "a"] == [("a", "1"), ("a", "2")]


def test_tree_opens_and_closes_what_has_children() -> None:
    nodes = tree(parse_json('{"a": [true, null], "b c": {}}'))
    assert nodes == [
        Node("open", "", "", "$", 2, is_array=False, is_unfolded=True),
        Node("open", "a", "", "$.a", 2, is_array=True, is_unfolded=True),
        Node("literal", "0", "true", "$.a[0]"),
        Node("literal", "1", "null", "$.a[1]"),
        Node("close", is_array=True),
        Node("open", "b c", "", '$["b c"]', 0, is_array=False, is_unfolded=True),
        Node("close"),
        Node("close"),
    ]


def test_tree_of_a_huge_value_is_cut_and_stays_balanced() -> None:
    nodes = tree(parse_json(json.dumps({"a": [[n] for n in range(10_000)]})))
    assert len(nodes) < NODES_MAX + 10
    assert any(it.kind == "cut" for it in nodes)
    assert sum(it.kind == "open" for it in nodes) == sum(it.kind == "close" for it in nodes)


def test_tree_cuts_deep_levels() -> None:
    nodes = tree(parse_json("[" * 200 + "]" * 200))
    assert any("levels" in it.text for it in nodes)
    assert sum(it.kind == "open" for it in nodes) == sum(it.kind == "close" for it in nodes)


@pytest.mark.parametrize("depth", [500, 5_000, 200_000])
def test_parse_refuses_what_is_nested_too_deeply(depth: int) -> None:
    with pytest.raises(ValueError, match="levels"):
        parse_json("[" * depth + "]" * depth)
    with pytest.raises(ValueError, match="levels"):
        parse_json('{"a":' * depth + "1" + "}" * depth)


@pytest.mark.parametrize("text", ["", "{", "nul", "{'a': 1}"])
def test_parse_refuses_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_null_is_a_value() -> None:
    assert parse_json("null") is None
    assert [it.text for it in tree(None)] == ["null"]


def test_pretty_and_plain_are_the_same_json() -> None:
    value = {"a": [1, 2.5, {"b": None, "c": []}], "d": "ü\n", "e": {}}
    parsed = parse_json(json.dumps(value))
    assert json.loads(pretty(parsed)) == value
    assert plain(parsed) == value
    assert pretty({"a": 1}) == '{\n  "a": 1\n}'

"""JSON text: exact numbers, duplicate keys, limits."""

from __future__ import annotations

import json

import pytest

from millstream.admin.json_text import parse_json, plain, pretty


def test_numbers_stay_as_they_were_written() -> None:
    text = '{"id": 12345678901234567890, "price": 1.10, "tiny": 1e-400}'
    shown = pretty(parse_json(text))
    for number in ("12345678901234567890", "1.10", "1e-400"):
        assert number in shown


def test_duplicate_keys_are_all_shown() -> None:
    assert pretty(parse_json('{"a": 1, "a": 2}')).count('"a"') == 2


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
    assert pretty(None) == "null"


def test_pretty_and_plain_are_the_same_json() -> None:
    value = {"a": [1, 2.5, {"b": None, "c": []}], "d": "ü\n", "e": {}}
    parsed = parse_json(json.dumps(value))
    assert json.loads(pretty(parsed)) == value
    assert plain(parsed) == value
    assert pretty({"a": 1}) == '{\n  "a": 1\n}'

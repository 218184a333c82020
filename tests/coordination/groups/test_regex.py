"""Regular-expression subscriptions have RE2's meaning, and match whole names."""

from __future__ import annotations

import pytest

from millstream.coordination.group_records import ConsumerGroupRegularExpressionValue
from millstream.coordination.groups.regex import (
    ResolvedRegex,
    matching_topics,
    regex_tombstone,
    validate_regex,
)
from millstream.errors import ApiError, ErrorCode

TOPICS = ("orders", "orders-eu", "my-orders", "Größe", "__consumer_offsets")


@pytest.mark.parametrize(
    ("regex", "matched"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-eu"}),
        ("^orders$", {"orders"}),
        ("(?i)ORDERS", {"orders"}),
        (r"\pL+", {"orders", "Größe"}),
        (".*", set(TOPICS)),
        ("", set()),
    ],
)
def test_expression_matches_whole_names(regex: str, matched: set[str]) -> None:
    validate_regex(regex)
    assert matching_topics(regex, TOPICS) == matched


@pytest.mark.parametrize("regex", ["(", "[a", "*a", "a{1001}", "(?=a)", r"(a)\1", "(?P<n"])
def test_expression_that_re2_does_not_take_is_invalid(regex: str) -> None:
    with pytest.raises(ApiError) as refused:
        validate_regex(regex)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert regex in str(refused.value)


def test_expression_that_would_take_too_much_memory_is_invalid() -> None:
    with pytest.raises(ApiError):
        validate_regex("((((a{10}){10}){10}){9}b?){0,3}" * 40)


def test_expression_of_exponential_backtracking_is_matched_in_linear_time() -> None:
    assert matching_topics("(a*)*b", ["a" * 249]) == frozenset()


def test_largest_expression_that_is_taken_still_matches() -> None:
    """The automaton that matches must have room for what the validation lets pass."""
    alternatives = [f"({'x' * 9}|[a-y]{{20,30}}){number}" for number in range(200)]
    largest = ""
    for count in range(1, 200):
        try:
            validate_regex("|".join(alternatives[:count]))
        except ApiError:
            break
        largest = "|".join(alternatives[:count])
    assert largest.count("|") > 40
    names = ["xxxxxxxxx0", "abcdefghijklmnopqrstuvwxy0", "z0"]
    assert matching_topics(largest, names) == set(names[:2])


def test_resolved_expression_is_a_record_and_its_removal_a_tombstone() -> None:
    record = ResolvedRegex(frozenset({"b", "a"}), 7, 123).record("g", "x")
    assert record.value == ConsumerGroupRegularExpressionValue(("a", "b"), 7, 123)
    assert regex_tombstone("g", "x").key == record.key

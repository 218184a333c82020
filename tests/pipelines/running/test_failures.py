"""Errors in one line, from texts as Spark writes them."""

from __future__ import annotations

import pytest

from millstream.pipelines.running.failures import cause_of, explain_failure, passes, without_values

OURS = """[STREAM_FAILED] Query [id = 0c, runId = 1d] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "source.py", line 20, in latestOffset
    raise DataLost("x")
millstream.pipelines.reading.positions.DataLost: records were deleted before they were read \
(orders-0)

SQLSTATE: 38000"""
THEIRS = """[STREAM_FAILED] Query [id = 0c, runId = 1d] terminated with exception: An exception \
was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "shop.py", line 7, in f
    return 1 / 0
ZeroDivisionError: division by zero
SQLSTATE: 39000
=== Streaming Query ===
Identifier: failing [id = 0c, runId = 1d]
"""
PLAIN = "[STREAM_FAILED] Query [id = 0c, runId = 1d] terminated with exception: it is so."


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (OURS, "records were deleted before they were read (orders-0)"),
        (THEIRS, "ZeroDivisionError: division by zero"),
        (PLAIN, "it is so."),
        (
            "[UNRESOLVED_COLUMN] Did you mean `id`? SQLSTATE: 42703;\n'Project",
            "[UNRESOLVED_COLUMN] Did you mean `id`?",
        ),
        ("", "no reason given"),
    ],
)
def test_cause_is_the_innermost_error(text: str, cause: str) -> None:
    assert cause_of(text) == cause


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] ...", "another schema than its checkpoint"),
        ("There are [1] sources in the checkpoint offsets and now there are [2]", "another number"),
        ("Multiple streaming queries are concurrently using file:/c", "another process runs it"),
        ("Python worker failed to connect back.", "the machine is too busy"),
        ("java.io.IOException: No space left on device", "the disk is full"),
    ],
)
def test_known_trouble_comes_with_its_cure(text: str, words: str) -> None:
    told = str(explain_failure("revenue", RuntimeError(text)))
    assert told.startswith("pipeline revenue failed: ")
    assert words in told
    assert text in told


def test_only_a_slow_start_or_a_race_within_spark_is_worth_another_start() -> None:
    assert passes(RuntimeError("[STREAM_FAILED] ...: Python worker failed to connect back. SQL..."))
    assert passes(RuntimeError("[STREAM_FAILED] ... with exception: Task not serializable SQL..."))
    assert passes(
        RuntimeError(
            "[STREAM_FAILED] ...: Job aborted due to stage failure: Task serialization failed: "
            "java.lang.IllegalStateException: Illegal size 5 of collection, expected 6"
        )
    )
    assert not passes(RuntimeError(OURS))


@pytest.mark.parametrize(
    ("text", "published"),
    [
        (
            "[CAST_INVALID_INPUT] The value 'O'Brien, 7' of the type \"STRING\" is no INT",
            "[CAST_INVALID_INPUT] The value '…' of the type \"STRING\" is no INT",
        ),
        ("KeyError: 'alice'", "KeyError: '…'"),
        (
            "there is no topic 'orders' in Spark's plan",
            "there is no topic 'orders' in Spark's plan",
        ),
        ("could not convert string to float: 'cut of", "could not convert string to float: '…'"),
        ("duplicate: Key (id)=(4711) already exists", "duplicate: Key (id)… already exists"),
        ("Key (name)=(ada (lovelace) byron) already exists", "Key (name)… already exists"),
        (
            "not-null constraint DETAIL: Failing row contains (4, ada, Bath).",
            "not-null constraint DETAIL: ….",
        ),
        ("Failing row contains (4, ada", "…"),
        ('bad row {"card": {"number": 4}}, see', "bad row …, see"),
        ("Row(name=ada, age=3) is refused", "… is refused"),
        ("card 4111111111111111 of ada@example.com", "card … of …"),
        ("127.0.0.1:9092 cannot be reached: 3 tries", "127.0.0.1:9092 cannot be reached: 3 tries"),
        ("", ""),
    ],
)
def test_published_errors_have_no_values_of_records(text: str, published: str) -> None:
    assert without_values(text, "revenue orders order_by STRING") == published


def test_part_of_a_known_name_is_not_known() -> None:
    assert without_values("no 'order'", "orders") == "no '…'"
    assert without_values("no '(.*'", "orders") == "no '…'"
    assert without_values("run1234567 of orders", "run1234567") == "run1234567 of orders"
    assert without_values("run1234567 of orders", "orders") == "… of orders"

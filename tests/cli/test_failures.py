"""Every expected failure has its line; a bug of ours keeps its traceback."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from millstream.cli.failures import EXIT_UNREACHABLE, explain, unreachable, usage_error
from millstream.errors import ConfigError


def test_own_failures_explain_themselves() -> None:
    failure = usage_error("say it otherwise")
    assert explain(failure) is failure
    assert str(explain(ConfigError("no such setting"))) == "no such setting"


def test_operating_system_errors_name_the_file() -> None:
    error = FileNotFoundError(2, "No such file or directory", "a/b")
    assert str(explain(error)) == "a/b: No such file or directory"


def test_kafka_errors_carry_their_name() -> None:
    explained = explain(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    assert "TOPIC_AUTHORIZATION_FAILED" in str(explained)


def test_bugs_are_not_explained_away() -> None:
    assert explain(KeyError("x")) is None


def test_unreachable_says_where_and_what_to_do() -> None:
    failure = unreachable("example:9092")
    assert failure.exit_code == EXIT_UNREACHABLE
    assert "example:9092" in str(failure)
    assert "millstream serve" in str(failure)

"""Error codes against kio's, which are generated from Kafka's own; how errors read."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KafkaErrorCode

from millstream.errors import ApiError, ErrorCode, MillstreamError, StorageError


@pytest.mark.parametrize("theirs", list(KafkaErrorCode), ids=lambda code: str(code.name))
def test_error_codes_are_kafkas(theirs: KafkaErrorCode) -> None:
    ours = ErrorCode(theirs.value)
    assert ours.name == theirs.name.upper()
    assert ours.retriable == theirs.retriable


def test_every_code_has_words_for_people() -> None:
    assert all(code.description.endswith(".") for code in ErrorCode)


def test_api_error_reads_as_its_code_and_message() -> None:
    error = ApiError(ErrorCode.INVALID_CONFIG, "segment.bytes is 5; give at least 1048576")
    assert str(error) == "INVALID_CONFIG: segment.bytes is 5; give at least 1048576"
    assert str(ApiError(ErrorCode.NOT_COORDINATOR)) == (
        "NOT_COORDINATOR: This is not the correct coordinator."
    )


def test_hierarchy_lets_one_handler_catch_all_of_ours() -> None:
    assert issubclass(ApiError, MillstreamError)
    assert issubclass(StorageError, MillstreamError)
    assert not issubclass(MillstreamError, OSError)

"""Each item of an administrative request is answered if the metadata cannot be changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.metadata.outcomes import failures, settled
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import ClusterImage
from millstream.errors import ApiError, ErrorCode, MillstreamError, StorageError
from tests.broker.handlers.administering import converse
from tests.broker.handlers.each_item import each_request
from tests.broker.serving import WireClient

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_failure_is_that_of_each_item_and_tells_no_files() -> None:
    async def commit(error: MillstreamError | None) -> None:
        if error is not None:
            raise error

    late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "late")
    assert asyncio.run(failures("ab", commit(None))) == {}
    assert asyncio.run(failures("ab", commit(late))) == {"a": late, "b": late}
    broken = asyncio.run(failures("ab", commit(StorageError("/secret/place is full"))))
    assert {it.code for it in broken.values()} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert "secret" not in str(broken["a"].message)


def test_items_that_were_refused_stay_refused_if_the_others_fail() -> None:
    late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "late")
    wrong = ApiError(ErrorCode.INVALID_CONFIG, "no such setting")
    assert settled({"a": wrong, "b": None}, {"a": late, "b": late}) == {"a": wrong, "b": late}
    assert settled({"a": wrong, "b": None}, {}) == {"a": wrong, "b": None}
    assert settled({}, {"a": late}) == {"a": late}


@pytest.mark.parametrize(
    "error", [ApiError(ErrorCode.REQUEST_TIMED_OUT, "no answer"), None], ids=["late", "decided"]
)
def test_every_item_of_every_request_is_answered(tmp_path: Path, error: ApiError | None) -> None:
    """Whether or not the change was decided before it failed."""

    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic(it, 1) for it in "abcd"])
        before = server.metadata.image
        ids = before.topics["c"].id, before.topics["d"].id

        async def fail(decide: object) -> ClusterImage:
            if error is None and callable(decide):
                decide(before)
            raise error or ApiError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

        server.metadata.change = fail  # type: ignore[method-assign,assignment]
        for name, request in each_request("", ids).items():
            answer = await client.call(request.key, request.version, **request.fields)
            late = ErrorCode.REQUEST_TIMED_OUT
            assert request.codes(answer) == [late, late], name
        assert server.metadata.image is before

    converse(
        *(tmp_path, conversation),
        authorizer_class_name=AUTHORIZER,
        allow_everyone_if_no_acl_found="true",
        super_users="User:ANONYMOUS",
    )

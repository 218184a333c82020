"""Handlers of decoded requests: what they raise becomes a response."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from millstream.broker.deferred import Buffers
from millstream.broker.network.routing import Route
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import APIS
from tests.protocol.kio_messages import kio_response

HEARTBEAT, VERSION = 12, 4
LIST_REASSIGNMENTS = 46


class Context:
    api_version = VERSION


def route(handler: Any) -> Route:
    return Route(APIS[HEARTBEAT], cast(RequestContext, Context()), handler)


def test_error_of_a_plain_handler_is_the_response() -> None:
    def refuse(context: RequestContext, request: Any) -> Any:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    served = route(refuse)
    assert not served.is_task
    assert kio_response("heartbeat", VERSION, served.answer(None)).error_code == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ApiError(ErrorCode.ILLEGAL_GENERATION), ErrorCode.ILLEGAL_GENERATION),
        (RuntimeError("a defect"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_error_of_a_coroutine_handler_is_the_response(
    raised: Exception, expected: ErrorCode
) -> None:
    async def refuse(context: RequestContext, request: Any) -> Any:
        raise raised

    served, answers = route(refuse), list[Buffers | None]()
    assert served.is_task
    asyncio.run(served.run(None, answers.append))
    (answer,) = answers
    assert isinstance(answer, bytes)
    assert kio_response("heartbeat", VERSION, answer).error_code == expected


def test_message_of_a_defect_is_not_for_clients() -> None:
    async def fail(context: RequestContext, request: Any) -> Any:
        raise RuntimeError("/var/lib/secret")

    class First:
        api_version = 0

    answers: list[Buffers | None] = []
    served = Route(APIS[LIST_REASSIGNMENTS], cast(RequestContext, First()), fail)
    asyncio.run(served.run(None, answers.append))
    (answer,) = answers
    assert isinstance(answer, bytes)
    message = kio_response("list_partition_reassignments", 0, answer).error_message
    assert message == ErrorCode.UNKNOWN_SERVER_ERROR.description


def test_response_that_cannot_be_encoded_closes_the_connection() -> None:
    async def answer(context: RequestContext, request: Any) -> Any:
        return {"error_code": "no number"}

    answers: list[Buffers | None] = []
    asyncio.run(route(answer).run(None, answers.append))
    assert answers == [None]

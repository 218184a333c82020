"""Shared by the handlers of the transactional APIs."""

from __future__ import annotations

from millstream.broker.services import RequestContext
from millstream.coordination.transactions.late_ends import ClientConnection
from millstream.errors import ApiError, ErrorCode


def code_for(error: ApiError, context: RequestContext, *, fenced_since: int) -> ErrorCode:
    """The error's code; versions before `fenced_since` do not have PRODUCER_FENCED."""
    if error.code is ErrorCode.PRODUCER_FENCED and context.api_version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


def connection_of(context: RequestContext) -> ClientConnection:
    return ClientConnection(context.client_id, context.client_host, context.connection_id)


def require_transactional_id(transactional_id: str) -> None:
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")

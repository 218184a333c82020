"""Shared by the handlers of the transactional APIs."""

from __future__ import annotations

from millstream.broker.services import RequestContext
from millstream.coordination.transactions.late_ends import ClientConnection
from millstream.errors import ApiError, ErrorCode


def connection_of(context: RequestContext) -> ClientConnection:
    return ClientConnection(context.client_id, context.client_host, context.connection_id)


def require_transactional_id(transactional_id: str) -> None:
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")

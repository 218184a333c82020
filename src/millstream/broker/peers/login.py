"""Log in to another broker with SASL, on a connection that was just opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millstream.broker.peers.connection import PeerConnection, PeerError, api_of
from millstream.errors import ErrorCode, MillstreamError, ProtocolError
from millstream.protocol.messages import Fields, decode_response, encode_request, milliseconds

if TYPE_CHECKING:
    from millstream.security.login import Login

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2


async def log_in(connection: PeerConnection, login: Login, *, timeout_seconds: float) -> int:
    """Returns for how long the session lasts, in ms; 0 is for ever. Raises `PeerError`."""
    fields: Fields = {"mechanism": login.mechanism}
    answer = await _call(connection, "sasl_handshake", HANDSHAKE_VERSION, fields, timeout_seconds)
    if answer.error_code is not ErrorCode.NONE:
        raise PeerError(
            f"{connection.name}: it has not enabled {login.mechanism} "
            f"(sasl.mechanism.inter.broker.protocol), but {', '.join(answer.mechanisms)}"
        )
    token: bytes | None = login.begin()
    lifetime_ms = 0
    while token is not None:
        answer = await _call(
            connection,
            "sasl_authenticate",
            AUTHENTICATE_VERSION,
            {"auth_bytes": token},
            timeout_seconds,
        )
        if answer.error_code is not ErrorCode.NONE:
            raise PeerError(f"{connection.name}: cannot log in: {answer.error_message}")
        lifetime_ms = milliseconds(answer.session_lifetime)
        try:
            # In a thread: the other side says how many iterations SCRAM has, up to a second.
            loop = asyncio.get_running_loop()
            token = await loop.run_in_executor(None, login.respond, bytes(answer.auth_bytes))
        except MillstreamError as error:  # it may be an impostor
            raise PeerError(f"{connection.name}: cannot log in: {error}") from error
    return lifetime_ms


async def _call(
    connection: PeerConnection, api: str, version: int, fields: Fields, timeout_seconds: float
) -> Any:
    body = encode_request(api, version, fields)
    answer = connection.send(api_of(api), version, body, timeout_seconds=timeout_seconds)
    try:
        return decode_response(api, version, await answer)
    except ProtocolError as error:
        raise PeerError(f"{connection.name}: {error}") from error

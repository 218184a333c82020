"""SaslHandshake, v0-1: refused where clients do not authenticate, or have done so just now.

Connections of SASL listeners answer it themselves (`broker/network/sasl.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

    from millstream.protocol.messages import Fields


def sasl_handshake(context: RequestContext, request: SaslHandshakeRequest) -> Fields:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}

"""SaslAuthenticate, v0-2: refused where clients do not authenticate, or have done so.

Connections of SASL listeners answer it themselves (`broker/network/sasl.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest

    from millstream.protocol.messages import Fields


def sasl_authenticate(context: RequestContext, request: SaslAuthenticateRequest) -> Fields:
    return {
        "error_code": ErrorCode.ILLEGAL_SASL_STATE,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }

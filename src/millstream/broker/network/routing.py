"""How the requests of one API and version are served: the handler, its context, the encoding.

Handlers of decoded requests get the decoded message and return the fields of the response. A
handler that raises `ApiError` is answered with that error.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.broker.deferred import Buffers
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol import messages
from millstream.protocol.apis import Api
from millstream.protocol.headers import API_VERSIONS_KEY

if TYPE_CHECKING:
    from millstream.broker.counters import RequestMeter
    from millstream.broker.network.metering import QuotaMeter

logger = logging.getLogger("millstream.connection")

FindHandler: TypeAlias = Callable[[Api], Callable[..., Any]]


class Route:
    """How requests of one API and version from one client id are served."""

    __slots__ = (
        "api",
        "context",
        "flexible_request",
        "flexible_response",
        "handler",
        "is_task",
        "meter",
        "quota",
    )

    def __init__(
        self,
        api: Api,
        context: RequestContext,
        handler: Callable[..., Any],
        meter: RequestMeter | None = None,
    ) -> None:
        """`meter` counts and measures its requests, if metrics are served."""
        version = context.api_version
        self.api = api
        self.context = context
        self.handler = handler
        self.flexible_request = version >= api.first_flexible
        self.flexible_response = self.flexible_request and api.key != API_VERSIONS_KEY
        self.is_task = inspect.iscoroutinefunction(handler)
        self.meter = meter
        self.quota: QuotaMeter | None = None  # counts the requests, if the client has quotas

    def handle_raw(self, body: memoryview) -> Any:
        """Run a raw handler."""
        return self.handler(self.context, body)

    def handle_decoded(self, body: memoryview) -> bytes:
        """Run a plain handler on a request that is not decoded yet."""
        return self.answer(self.decode(bytes(body)))

    def decode(self, body: bytes) -> Any:
        """The request. Raises `ProtocolError` if it is malformed."""
        api, version = self.api, self.context.api_version
        if api.exact:
            return messages.decode_request_exactly(api.name, version, body)
        return messages.decode_request(api.name, version, api.max_version, body)

    def answer(self, request: Any) -> bytes:
        """Run a plain handler and encode its response."""
        try:
            fields = self.handler(self.context, request)
        except ApiError as error:
            fields = _error_fields(error)
        if self.meter is not None:
            self.meter.errors_in(fields)
        return messages.encode_response(self.api.name, self.context.api_version, fields)

    async def run(self, request: Any, complete: Callable[[Buffers | None], None]) -> None:
        """Run a coroutine handler and encode its response."""
        name = self.api.name
        try:
            try:
                fields = await self.handler(self.context, request)
            except ApiError as error:
                fields = _error_fields(error)
            except Exception:  # its message is not for clients: it may name files, or worse
                logger.exception("%s failed", name)
                fields = _error_fields(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            if self.meter is not None:
                self.meter.errors_in(fields)
            body = messages.encode_response(name, self.context.api_version, fields)
        except Exception:
            logger.exception("the response of %s could not be encoded", name)
            complete(None)
        else:
            complete(body)


def _error_fields(error: ApiError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or error.code.description}

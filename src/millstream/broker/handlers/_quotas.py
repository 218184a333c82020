"""What handlers do about the quotas of a client. Without quotas nothing of this is called."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeVar

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.peers.peers import CLIENT_ID_PREFIX
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.quotas.clients import ClientQuotas, Meters, MutationUsage, Usage
    from millstream.broker.quotas.rates import TokenBucket
    from millstream.broker.services import RequestContext

Key = TypeVar("Key", bound=Hashable)

_BROKER_CLIENT_ID = re.compile(rf"{CLIENT_ID_PREFIX}([0-9]{{1,10}})(-.*)?")


def is_broker(context: RequestContext) -> bool:
    """Whether the client is a broker of this cluster: quotas are not for these. A client id alone
    proves nothing."""
    named = _BROKER_CLIENT_ID.fullmatch(context.client_id or "")
    return (
        named is not None
        and context.listener == context.services.config.inter_broker_listener
        and int(named[1]) in context.services.metadata.image.brokers
        and may_cluster(context, Operation.CLUSTER_ACTION, log_denied=False)
        and _logged_in_as_broker(context)
    )


def _logged_in_as_broker(context: RequestContext) -> bool:
    """Whether the client has the brokers' own user; True without SASL."""
    config = context.services.config
    if not config.listener_protocols[context.listener].uses_sasl:
        return True
    # Imported only where it is used: TLS and SASL take a start longer.
    from millstream.broker.security.authorizer import principal_of_brokers

    return context.client.principal == principal_of_brokers(config)


def throttle(context: RequestContext, api: str, ms: int) -> None:
    """Mute the client, whose response names this throttle time."""
    counters = context.services.counters
    if counters is not None:
        counters.throttled(api, ms)
    context.client.mute(ms)


def meters_of(context: RequestContext, quotas: ClientQuotas) -> Meters | None:
    """What to count of the client's requests; None: nothing."""
    if is_broker(context):
        return None
    now_ms = context.services.clock.monotonic_ms()
    return quotas.meters(context.client.principal.name, context.client_id or "", now_ms)


def fetch_usage(context: RequestContext, quotas: ClientQuotas) -> Usage | None:
    """What the client has fetched, if there is a quota for that."""
    kept = context.client.fetch_usage
    if kept is None or kept[0] != context.client_id:
        meters = meters_of(context, quotas)
        kept = (context.client_id, None if meters is None else meters.fetch)
        context.client.fetch_usage = kept
    return kept[1]


class Mutations:
    """Counts the partitions that a request creates or deletes (KIP-599).

    From `strict_since` on, what exceeds the quota is refused with THROTTLING_QUOTA_EXCEEDED.
    Clients of older versions do not know that error, and are only throttled.
    """

    def __init__(self, context: RequestContext, api: str, *, strict_since: int) -> None:
        self._context = context
        self._api = api
        self._is_strict = context.api_version >= strict_since
        self._usage: MutationUsage | None = None
        self.throttle_ms = 0
        quotas = context.services.throttling.quotas
        if quotas is not None and not is_broker(context):
            user, client_id = context.client.principal.name, context.client_id or ""
            self._usage = quotas.mutations(user, client_id, self._now_ms())

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota for this client."""
        return self._usage is not None

    def refusals(self, partitions: Mapping[Key, int]) -> dict[Key, ApiError]:
        """Count the partitions of each topic; returns those that the quota does not allow."""
        if self._usage is None:
            return {}
        bucket = self._usage.bucket
        errors = {topic: self._refusal(bucket, count) for topic, count in partitions.items()}
        return {topic: error for topic, error in errors.items() if error is not None}

    def _refusal(self, bucket: TokenBucket, partitions: int) -> ApiError | None:
        now_ms = self._now_ms()
        if not self._is_strict:
            self.throttle_ms = bucket.record(partitions, now_ms)
            return None
        throttle_ms = bucket.throttle_ms(now_ms)
        if not throttle_ms:
            bucket.record(partitions, now_ms)
            return None
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        return ApiError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            "The controller_mutation_rate of this client is exceeded; try again after "
            f"{throttle_ms} ms.",
        )

    def throttle(self) -> int:
        """Mute the client if it has exceeded its quota; returns the throttle time of the answer."""
        usage = self._usage
        if usage is not None and self.throttle_ms:
            usage.throttles.record(self.throttle_ms, self._now_ms())
            throttle(self._context, self._api, self.throttle_ms)
        return self.throttle_ms

    def _now_ms(self) -> int:
        return self._context.services.clock.monotonic_ms()

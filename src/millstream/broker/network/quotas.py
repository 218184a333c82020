"""Switches quotas on with the cluster's first one, and off with the last.

A broker without quotas imports nothing of them, and its requests are not measured. A change applies
to open connections at once; those that are muted go on, and are measured by the new quota.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker.network.connection import MUTE_MS_MAX

if TYPE_CHECKING:
    from millstream.broker.services import Services
    from millstream.coordination.cluster import ClusterImage


class QuotaSwitch:
    """See the module."""

    def __init__(self, services: Services, on_change: Callable[[], None]) -> None:
        """`on_change` lets open connections find out what applies to them."""
        self._services = services
        self._on_change = on_change
        services.metadata.subscribe(self._changed)
        self._apply(services.metadata.image)

    def _changed(self, before: ClusterImage, image: ClusterImage) -> None:
        if before.quotas is not image.quotas or (
            image.quotas and self._share_of(before) != self._share_of(image)
        ):
            self._apply(image)

    def _apply(self, image: ClusterImage) -> None:
        throttling = self._services.throttling
        if not image.quotas:
            if throttling.quotas is None:
                return
            throttling.quotas = None
        else:
            from millstream.broker.quotas.clients import ClientQuotas
            from millstream.broker.quotas.limits import Limits
            from millstream.broker.quotas.rates import Window

            limits = Limits(image.quotas, self._share_of(image))
            if throttling.quotas is not None:
                throttling.quotas.limits = limits
            else:
                config = self._services.config
                throttling.quotas = ClientQuotas(
                    limits,
                    window=Window(config.quota_window_num, config.quota_window_size_seconds * 1000),
                    controller_window=Window(
                        config.controller_quota_window_num,
                        config.controller_quota_window_size_seconds * 1000,
                    ),
                    throttle_ms_max=MUTE_MS_MAX,
                )
        self._on_change()

    def _share_of(self, image: ClusterImage) -> float:
        """The part of a quota that is this process's: the workers that run share one."""
        if not self._services.metadata.has_workers:
            return 1.0
        return 1 / max(sum(not broker.fenced for broker in image.brokers.values()), 1)

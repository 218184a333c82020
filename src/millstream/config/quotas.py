"""Settings of client quotas: over which time rates are measured. The quotas themselves are set with
`millstream quota` or Kafka's tools, and are part of the metadata."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import integer


@dataclass(frozen=True, init=False, repr=False, eq=False)
class QuotaSettings:
    """How quotas are measured."""

    quota_window_num: int = integer(
        11,
        low=1,
        importance="low",
        doc="Samples over which the rates of clients are measured; the last is the current one.",
    )
    quota_window_size_seconds: int = integer(
        1, low=1, importance="low", doc="The length of one of these samples."
    )
    controller_quota_window_num: int = integer(
        11,
        low=1,
        importance="low",
        doc="For controller_mutation_rate: a client may save up the quota of so many samples.",
    )
    controller_quota_window_size_seconds: int = integer(
        1, low=1, importance="low", doc="The length of one of these samples."
    )

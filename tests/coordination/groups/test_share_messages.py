"""What is to be initialized, as the persister is asked for it."""

from __future__ import annotations

from uuid import UUID

from millstream.coordination.groups.share_messages import Initialization
from millstream.coordination.share_state import SharePartitionKey


def test_initialization_names_its_share_partitions_in_order() -> None:
    a, b = UUID(int=1), UUID(int=2)
    initialization = Initialization("g", 3, {(b, 0): -1, (a, 1): 7})
    assert initialization.share_partitions() == [
        SharePartitionKey("g", b, 0),
        SharePartitionKey("g", a, 1),
    ]

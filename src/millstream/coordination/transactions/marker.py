"""What the end of a transaction says to every partition that took part in it."""

from typing import NamedTuple


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction, as its coordinator decided it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int
    """The protocol it was ended by: 2 (KIP-890) where the epoch rises with every end."""

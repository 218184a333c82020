"""Leader epochs and their start offsets.

A follower or client with "epoch 3, offset 120" asks for the end of epoch 3, to detect truncation of
its log. Every batch carries its epoch, so this cache is rebuilt from the log past the recovery
point; `leader-epoch-checkpoint` holds what lies before it, and is not believed beyond: it may have
epochs of batches that were never flushed, or that were truncated.
"""

from __future__ import annotations

from millstream.storage.checkpoints import encode_epochs, read_epochs
from millstream.storage.filesystem import FileSystem, SyncBatch
from millstream.storage.names import LEADER_EPOCHS

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """(epoch, start offset) pairs; both strictly increase."""

    __slots__ = ("_entries", "_path", "dirty", "latest")

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._entries: list[tuple[int, int]] = []
        self.latest = UNDEFINED_EPOCH
        self.dirty = False  # whether the file is outdated

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def load(self, fs: FileSystem) -> None:
        self._entries = sorted(read_epochs(fs, self._path))
        self._update_latest()
        self.dirty = False

    def save(self, batch: SyncBatch) -> None:
        """Write the file if it is outdated."""
        if self.dirty:
            batch.replace(self._path, encode_epochs(self._entries))

    def note_saved(self, entries: tuple[tuple[int, int], ...]) -> None:
        """The file has these entries now."""
        self.dirty = entries != self.entries

    def assign(self, epoch: int, start_offset: int) -> None:
        """An epoch begins. Removes contradicting entries: those of a truncated log, and those of
        leaders that appended nothing."""
        if epoch < 0 or epoch <= self.latest:
            return
        self.truncate_from_end(start_offset)
        self._entries.append((epoch, start_offset))
        self.latest = epoch
        self.dirty = True

    def clear(self) -> None:
        """Remove all epochs, as in a new log."""
        self._entries = []
        self._update_latest()
        self.dirty = True

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that started at or after `end_offset`."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()
            self.dirty = True
        self._update_latest()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended by `start_offset`; the current one starts there."""
        covering = [entry for entry in self._entries if entry[1] <= start_offset]
        if not covering:
            return
        first = (covering[-1][0], start_offset)
        if self._entries[0] != first:
            self._entries = [first, *self._entries[len(covering) :]]
            self.dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest epoch known that is at most `epoch`, the offset at which it ended).

        As Kafka answers OffsetForLeaderEpoch: (-1, -1) for an epoch that is not known, newer than
        the latest, or undefined; for one older than the earliest, the start of the earliest.
        """
        if epoch == UNDEFINED_EPOCH or not self._entries or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        if epoch < self._entries[0][0]:
            return epoch, self._entries[0][1]
        number = max(i for i, entry in enumerate(self._entries) if entry[0] <= epoch)
        return self._entries[number][0], self._entries[number + 1][1]

    def epoch_of(self, offset: int) -> int:
        """The epoch in which `offset` was written, or -1."""
        for epoch, start_offset in reversed(self._entries):
            if start_offset <= offset:
                return epoch
        return UNDEFINED_EPOCH

    def _update_latest(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

"""A simulated host's disk: a power cut takes what was not flushed, and nothing else."""

from __future__ import annotations

import uuid
from random import Random

from millstream.records.record import Record, encode_batch
from millstream.testing.simulation.hosts import Disk, read_all
from millstream.testing.simulation.invariants import Invariants, Key
from millstream.testing.simulation.world import World

KEY: Key = (uuid.UUID(int=5), 0)
BATCH = encode_batch([Record(0, 1_000, None, b"value", ())])


def disk() -> Disk:
    made = Disk(1, Invariants(World(1)))
    made.open()
    return made


def test_flushed_records_survive_a_power_cut_and_others_do_not() -> None:
    it = disk()
    log = it.create("t", KEY)
    it.append(KEY, log, BATCH, 0)
    it.flush([(KEY, log)])()
    it.append(KEY, log, BATCH, 0)
    it.fs.crash()
    assert it.open()[KEY].log_end_offset == 1


def test_killed_process_leaves_what_it_has_written() -> None:
    it = disk()
    log = it.create("t", KEY)
    it.append(KEY, log, BATCH, 0)
    it.kill(cuts_power=False, random=Random(1))
    assert it.open()[KEY].log_end_offset == 1


def test_follower_has_the_bytes_of_its_leader_and_is_cut_where_asked() -> None:
    leader, follower = disk(), disk()
    source, target = leader.create("t", KEY), follower.create("t", KEY)
    for epoch in (0, 0, 2):
        leader.append(KEY, source, BATCH, epoch)
    follower.append_fetched(KEY, target, read_all(source), offset=0, epoch=2)
    assert read_all(target) == read_all(source)
    follower.truncate(KEY, target, 2, is_below_high_watermark=False)
    assert (target.log_end_offset, target.epochs.entries) == (2, ((0, 0),))

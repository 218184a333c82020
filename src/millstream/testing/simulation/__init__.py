"""A deterministic simulation of a replicated cluster: the real machines and logs, and faults.

    run(seed)       one history: brokers, clients and faults, then healing. Raises `Violation`

The brokers run `coordination/replication` over the real `storage.Log` on `MemoryFileSystem`. The
network, ZooKeeper, time and the disks are models (`network`, `zookeeper`, `world`, `hosts`). All
choices come from one `random.Random(seed)`, so a seed replays a failure, event by event. The
invariants (`invariants`) are checked at every event that can break them.
"""

from millstream.testing.simulation.stories import Outcome, run
from millstream.testing.simulation.world import Violation

__all__ = ["Outcome", "Violation", "run"]

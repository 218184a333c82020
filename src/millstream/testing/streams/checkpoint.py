"""What a trial reads from a query's checkpoint, and what it does to it.

Each micro-batch takes one file of every input, so Spark's log of a source counts the case's
batches: `offsets/N` has `{"logOffset": 3}` if batch N goes as far as the case's batch 3. A batch
without rows, which Spark adds when the watermark has moved, goes as far as the one before it.

To lose a commit is to delete `commits/N`, with its checksum: what is left is what a crash leaves
between the sink and the commit. The time of a batch stands in `offsets/N`, too, and holds when the
batch is repeated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PlannedBatch:
    """A micro-batch as Spark wrote it down before it began."""

    batch_id: int
    last_place: int  # the newest of the case's batches that is in it
    watermark_ms: int | None


def planned_batches(checkpoint: Path) -> list[PlannedBatch]:
    """All of them, in order."""
    names = [it.name for it in (checkpoint / "offsets").glob("*") if it.name.isdigit()]
    return [planned_batch(checkpoint, batch_id) for batch_id in sorted(map(int, names))]


def planned_batch(checkpoint: Path, batch_id: int) -> PlannedBatch:
    lines = _lines(checkpoint, batch_id)
    watermark_ms = int(json.loads(lines[1])["batchWatermarkMs"])
    places = [int(json.loads(line)["logOffset"]) for line in lines[2:] if line != "-"]
    return PlannedBatch(batch_id, max(places, default=-1), watermark_ms or None)


def lose_commit(checkpoint: Path) -> int | None:
    """Forget that the last batch was done; returns its number."""
    commits = checkpoint / "commits"
    done = [int(it.name) for it in commits.glob("*") if it.name.isdigit()]
    if not done:
        return None
    (commits / f"{max(done)}").unlink()
    (commits / f".{max(done)}.crc").unlink(missing_ok=True)
    return max(done)


def set_time(checkpoint: Path, batch_id: int, now_ms: int) -> None:
    """Have a batch that is going to be repeated happen at another time."""
    lines = _lines(checkpoint, batch_id)
    lines[1] = json.dumps({**json.loads(lines[1]), "batchTimestampMs": now_ms})
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines), encoding="utf-8")
    (checkpoint / "offsets" / f".{batch_id}.crc").unlink(missing_ok=True)


def _lines(checkpoint: Path, batch_id: int) -> list[str]:
    return (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()

"""Ends that a stream does not read beyond: `endingOffsets`, and the file of a halt, `haltFile`.

With `endingOffsets` a stream reads up to these offsets, and then waits. A halt does the same while
it lasts: another process writes the file, and removes it when the stream may go on.

    {"cut": {"orders": {"0": 17}}}    read up to here
    {"cut": null}                     read nothing more

Partitions that a cut does not name are not read further. A planner looks at the file after it has
asked for the ends of the topics. So if the file was not there, the batch ends before or at what the
ends are when the file is there: a cut at those ends is not behind any batch (`versions/halting.py`
relies on it).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets, from_json, to_json
from millstream.pipelines.query_files import replace_file


@dataclass(frozen=True)
class Cut:
    """`ends` is None if nothing more may be read."""

    ends: Offsets | None

    def limit(self, start: Offsets, latest: Offsets) -> Offsets:
        """Where a batch that begins at `start` may end, instead of at `latest`."""
        ends = self.ends or {}
        limited = {
            it: max(min(offset, ends[it]), start.get(it, 0))
            for it, offset in latest.items()
            if it in ends
        }
        return start | limited


def read_cut(file: Path | None) -> Cut | None:
    """None if there is no halt."""
    if file is None:
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["cut"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"haltFile {file} is not one of ours: {error}") from error
    return Cut(None if found is None else from_json(found))


def write_cut(file: Path, cut: Cut) -> None:
    content = {"cut": None if cut.ends is None else to_json(cut.ends)}
    replace_file(file, json.dumps(content))

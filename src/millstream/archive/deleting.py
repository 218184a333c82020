"""Deletes the archive of a topic that was deleted.

A topic is marked before it is deleted, by `~deleted/<topic id>.json` (no topic can have that name).
Brokers then delete what is archived of marked topics that the cluster no longer has. So a deletion
that a crash interrupts is finished later, and one that was refused harms nothing. A mark is kept
until no upload of a former leader can be under way any more.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from uuid import UUID

from millstream.archive.manifest import ArchiveError, manifests_of, parse_partition, parse_topic_id
from millstream.archive.places import Place

MARKS = "~deleted"
_SUFFIX = ".json"
VERSION = 1


class Mark(NamedTuple):
    """A topic that is to be deleted, or was."""

    topic: str
    topic_id: UUID
    marked_ms: int


def mark_topic(place: Place, mark: Mark) -> None:
    """Durably. Raises `ArchiveError`, as everything here does."""
    value = {
        "version": VERSION,
        "topic": mark.topic,
        "topic_id": str(mark.topic_id),
        "marked_ms": mark.marked_ms,
    }
    with place.create(_path(mark.topic_id)) as output:
        output.write(json.dumps(value).encode())


def unmark_topic(place: Place, topic_id: UUID) -> None:
    """Also if it is not marked."""
    place.delete(_path(topic_id))


def marked_topics(place: Place) -> list[Mark]:
    found = []
    for name in place.list(MARKS):
        topic_id = parse_topic_id(name.removesuffix(_SUFFIX))
        if topic_id is None or not name.endswith(_SUFFIX):
            continue
        try:
            value = json.loads(place.read(f"{MARKS}/{name}"))
            mark = Mark(str(value["topic"]), UUID(value["topic_id"]), int(value["marked_ms"]))
        except FileNotFoundError:
            continue  # another broker has finished
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                f"{place.path_of(MARKS)}/{name} does not name a deleted topic: {error!r}"
            ) from None
        if mark.topic_id == topic_id and "/" not in mark.topic and mark.topic not in ("", ".."):
            found.append(mark)
    return found


def delete_topic(place: Place, topic: str, topic_id: UUID) -> None:
    """All that is archived of it, and nothing of a topic of the same name. Manifests go first: who
    still reads the topic finds nothing, rather than a part."""
    root = f"{topic}/{topic_id}"
    for name in place.list(root):
        if parse_partition(name) is None:
            continue
        for manifest in manifests_of(place.list(f"{root}/{name}")):
            place.delete(f"{root}/{name}/{manifest}")
    place.delete_directory(root)


def _path(topic_id: UUID) -> str:
    return f"{MARKS}/{topic_id}{_SUFFIX}"

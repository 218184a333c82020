"""A timeline of posts by followed authors, while people post, edit, delete, follow and unfollow.

Two tables that change, posts and follows, are joined to a third one, which is updated
incrementally: nothing is recomputed. After every event the timeline is compared with the join of
both tables. The operators run here without Spark; on Spark, the same is

    posts = post_log.transform(
        changes, key="post_id", sequence="offset", delete=col("op") == "delete"
    )
    follows = follow_log.transform(changes, key=("follower", "author"), ...)
    posts.transform(table_join, follows, "author")
"""

from collections import Counter
from typing import Any

import pyarrow as pa

from millstream.pipelines.joins.changes import Changes
from millstream.pipelines.joins.table_table import Side, TableJoin
from millstream.pipelines.state import Trial

LOG = [("offset", pa.int64()), ("is_delete", pa.bool_())]
POSTS = pa.schema([("post_id", pa.int64()), ("author", pa.string()), ("text", pa.string()), *LOG])
FOLLOWS = pa.schema([("follower", pa.string()), ("author", pa.string()), *LOG])
POST, FOLLOW = ["post_id", "author", "text"], ["follower", "author"]

EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("follow", {"follower": "bea", "author": "ann"}),
    ("post", {"post_id": 1, "author": "ann", "text": "hello"}),
    ("follow", {"follower": "carl", "author": "ann"}),
    ("post", {"post_id": 1, "author": "ann", "text": "hello, world"}),
    ("post", {"post_id": 2, "author": "bea", "text": "good morning"}),
    ("unfollow", {"follower": "bea", "author": "ann"}),
    ("delete", {"post_id": 1}),
]


class Timeline:
    """The join, and the sum of all emitted changes."""

    def __init__(self) -> None:
        self._posts = Trial(Changes(POSTS, ["post_id"], "offset", "is_delete"))
        self._follows = Trial(Changes(FOLLOWS, FOLLOW, "offset", "is_delete"))
        weight = pa.field("_weight", pa.int64())
        posts = Side(_columns(POSTS, POST).append(weight), ("author",), tuple(POST))
        follows = Side(_columns(FOLLOWS, FOLLOW).append(weight), ("author",), ("follower",))
        self._join = Trial(TableJoin(posts, follows, "inner"))
        self._offset = 0
        self.entries: Counter[tuple[str, int, str, str]] = Counter()  # follower, id, author, text

    def apply(self, verb: str, row: dict[str, Any]) -> list[dict[str, Any]]:
        """What an event changes in the timeline."""
        self._offset += 1
        change = {**row, "offset": self._offset, "is_delete": verb in ("delete", "unfollow")}
        if verb in ("post", "delete"):
            log, schema, side, names = self._posts, POSTS, "left", POST
        else:
            log, schema, side, names = self._follows, FOLLOWS, "right", FOLLOW
        weighted = log.feed({"changes": pa.RecordBatch.from_pylist([change], schema=schema)})
        changed = self._join.feed({side: weighted.select([*names, "_weight"])}).to_pylist()
        for it in changed:
            entry = it["follower"], it["post_id"], it["author"], it["text"]
            self.entries[entry] += it["_weight"]
            if not self.entries[entry]:
                del self.entries[entry]
        return changed


class Recomputation:
    """The same, recomputed from both tables."""

    def __init__(self) -> None:
        self.posts: dict[int, tuple[str, str]] = {}
        self.follows: set[tuple[str, str]] = set()

    def apply(self, verb: str, row: dict[str, Any]) -> None:
        if verb == "post":
            self.posts[row["post_id"]] = row["author"], row["text"]
        elif verb == "delete":
            self.posts.pop(row["post_id"], None)
        elif verb == "follow":
            self.follows.add((row["follower"], row["author"]))
        else:
            self.follows.discard((row["follower"], row["author"]))

    def entries(self) -> Counter[tuple[str, int, str, str]]:
        return Counter(
            (follower, post_id, author, text)
            for post_id, (author, text) in self.posts.items()
            for follower, followed in self.follows
            if followed == author
        )


def _columns(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def main() -> None:
    timeline, check = Timeline(), Recomputation()
    for verb, row in EVENTS:
        print(verb, *row.values())
        for it in timeline.apply(verb, row):
            print(f"    {it['_op']} for {it['follower']}: {it['author']}: {it['text']}")
        check.apply(verb, row)
        assert timeline.entries == check.entries()


if __name__ == "__main__":
    main()

"""The pages in the navigation, in their order. A page whose module is missing is left out."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    module: str
    title: str
    path: str
    section: str
    shortcut: str  # the key after `g`


NAVIGATION = (
    Entry("overview", "Overview", "/", "", "o"),
    Entry("topics", "Topics", "/topics", "Data", "t"),
    Entry("dead_letters", "Dead letters", "/dead-letters", "Data", "d"),
    Entry("groups", "Groups", "/groups", "Readers", "g"),
    Entry("share_groups", "Share groups", "/share-groups", "Readers", "s"),
    Entry("transactions", "Transactions", "/transactions", "Readers", "x"),
    Entry("pipelines", "Pipelines", "/pipelines", "Processing", "p"),
    Entry("bridges", "Bridges", "/bridges", "Processing", "b"),
    Entry("cluster", "Cluster", "/cluster", "Operation", "c"),
    Entry("security", "Security", "/security", "Operation", "u"),
    Entry("quotas", "Quotas", "/quotas", "Operation", "q"),
    Entry("archive", "Archive", "/archive", "Operation", "a"),
    Entry("excision", "Excision", "/excision", "Operation", "e"),
)
# Modules with routes that have no entry of their own, and the first parts of their paths.
OTHERS = {
    "topic": ("topics",),
    "topic_reassign": ("topics",),
    "messages": ("topics",),
    "log_in": ("log-in", "log-out"),
}
# Further first parts of paths of modules that have an entry.
MORE = {"overview": ("history",), "transactions": ("transactions-in-partition",)}


def modules_of(part: str) -> list[str]:
    """The modules whose paths begin with this part, in the order in which routes are looked up;
    all of them if none does."""
    every = {entry.module: (entry.path[1:], *MORE.get(entry.module, ())) for entry in NAVIGATION}
    every |= OTHERS
    return [module for module, parts in every.items() if part in parts] or list(every)

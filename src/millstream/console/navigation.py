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
# Modules with routes that have no entry of their own.
OTHERS = ("topic", "topic_reassign", "messages", "log_in")

"""The role of a running version: whether it writes to the topics that readers read.

A version asks for its role at the beginning of each batch, and the store compares it in the batch's
transaction. If the versions were switched in between, the batch is written again by the new role:
what the first attempt has written is aborted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError
from millstream.pipelines.stores.spec import Role
from millstream.pipelines.versions.catalog import Catalog, open_catalog
from millstream.pipelines.versions.marks import check_store_is_new_enough, note_switch
from millstream.pipelines.versions.registry import Versions, private_topic

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster
    from millstream.pipelines.writing.options import WriteOptions


@dataclass(frozen=True)
class Targets:
    """Where a batch is written, and the role by which it is."""

    role: Role
    topics: Mapping[str, WriteOptions]


class Roles:
    """The role of one version; in the driver, one thread at a time."""

    def __init__(self, store_url: str, pipeline: str, version: str) -> None:
        self._url = store_url
        self._pipeline = pipeline
        self._version = version
        self._catalog: Catalog | None = None
        self._prepared: int | None = None  # the switch that topics were prepared for

    def targets(self, declared: Mapping[str, WriteOptions], cluster: Cluster | None) -> Targets:
        """The options for each topic: with its own name if the version is in force, otherwise with
        that of the version's private topic. `cluster` is None if there are no topics."""
        document = self._document()
        role = Role(self._pipeline, document.number)
        is_in_force = document.in_force == self._version
        topics = dict(declared)
        if not is_in_force:
            topics = {
                name: replace(it, topic=private_topic(it.topic or "", self._version))
                for name, it in declared.items()
            }
        if cluster is not None and self._prepared != document.number:
            check_store_is_new_enough(cluster, document)
            if is_in_force and document.number:
                note_switch(cluster, document)
            if not is_in_force:
                create_private(cluster, declared, topics)
            self._prepared = document.number
        return Targets(role, topics)

    def _document(self) -> Versions:
        if self._catalog is None:
            self._catalog = open_catalog(self._url)
        document = self._catalog.find(self._pipeline)
        if document is None:
            raise ConfigError(f"the versions of {self._pipeline} were removed while it ran")
        found = document.get(self._version)
        if found.is_removing:
            raise ConfigError(f"version {self._version} of {self._pipeline} is being removed")
        return document


def create_private(
    cluster: Cluster,
    declared: Mapping[str, WriteOptions],
    private: Mapping[str, WriteOptions],
) -> None:
    """Topics with as many partitions as the public ones, unless they exist."""
    wanted = []
    for name, options in declared.items():
        public = options.topic or ""
        wanted.append(NewTopic(private[name].topic or "", len(cluster.topic(public).partitions)))
    create_topics(cluster, wanted)

"""The settings in force, and how requests describe and change them.

`ConfigManager` joins the broker's static settings with what the metadata hold. A change is checked
in full before it is committed; a commit by anyone makes a new snapshot, and subscribers hear of it.
What was committed once but no longer fits (an older version's setting, say) is skipped with a
warning rather than keep the broker from starting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple, TypeAlias

from millstream.broker.metadata.loggers import change_levels, logger_levels, logger_setting
from millstream.broker.metadata.outcomes import failures, settled
from millstream.broker.metadata.store import MetadataLog
from millstream.config.archive import check_disabled
from millstream.config.broker import (
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Source,
    SourcedValue,
    check_dynamic,
    check_group,
    check_topic,
    client_metrics_config,
    find,
)
from millstream.config.groups import GroupConfig
from millstream.config.metrics import ClientMetricsConfig
from millstream.config.setting import Kind, Mode, Setting
from millstream.config.topic import TopicConfig
from millstream.coordination.cluster import ClusterImage, Resource, ResourceType
from millstream.coordination.cluster_records import ConfigRecord
from millstream.errors import ApiError, ConfigError, ErrorCode

logger = logging.getLogger(__name__)

ConfigSubscriber: TypeAlias = Callable[[BrokerConfig, BrokerConfig], None]
"""Called with the broker's settings before and now."""

_Edit: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]
"""From what a resource has set, what it will have set. Raises `ApiError` to refuse."""


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One change of a setting, as IncrementalAlterConfigs names it."""

    name: str
    operation: int
    value: str | None


class DescribedSetting(NamedTuple):
    """One line of DescribeConfigs: every value the setting has, the one in force first."""

    setting: Setting
    value: str | None
    source: Source
    read_only: bool
    synonyms: tuple[SourcedValue, ...]


class ConfigManager:
    def __init__(self, store: MetadataLog, config: BrokerConfig) -> None:
        self._store = store
        self._static = config
        self._topics: dict[str, TopicConfig] = {}
        self._groups: dict[str, GroupConfig] = {}
        self._subscribers: list[ConfigSubscriber] = []
        self.checks: list[Callable[[BrokerConfig], None]] = []  # of this broker's new settings
        self.current = config
        self._default_topic = config.topic_config()  # of all topics that set nothing themselves
        self._refresh(store.image)
        store.subscribe(self._on_commit)

    @property
    def broker_id(self) -> int:
        return self.current.id

    def subscribe(self, subscriber: ConfigSubscriber) -> None:
        self._subscribers.append(subscriber)

    def topic(self, name: str) -> TopicConfig:
        """The settings of a topic, which need not exist."""
        config = self._topics.get(name)
        if config is None:
            overrides = _usable(self._store.image.topic_overrides(name), TOPIC_SETTINGS, name)
            config = self.current.topic_config(overrides) if overrides else self._default_topic
            self._topics[name] = config
        return config

    def group(self, group_id: str) -> GroupConfig:
        config = self._groups.get(group_id)
        if config is None:
            overrides = self._store.image.config(ResourceType.GROUP, group_id)
            usable = _usable(overrides, GROUP_SETTINGS, group_id)
            config = self.current.group_config(usable)
            if overrides:  # a group without settings of its own is not worth a place
                self._groups[group_id] = config
        return config

    def _on_commit(self, before: ClusterImage, now: ClusterImage) -> None:
        changed = now.changed_configs(before)
        if any(resource.type is ResourceType.BROKER for resource in changed):
            self._refresh(now)
        for resource in changed:
            if resource.type is ResourceType.TOPIC:
                self._topics.pop(resource.name, None)
            elif resource.type is ResourceType.GROUP:
                self._groups.pop(resource.name, None)

    def _refresh(self, image: ClusterImage) -> None:
        """Take over the broker's dynamic settings."""
        before = self.current
        default = image.config(ResourceType.BROKER, "")
        own = image.config(ResourceType.BROKER, str(self._static.id))
        self.current = self._static.with_dynamic(
            _usable(default, BROKER_SETTINGS, "all brokers"),
            _usable(own, BROKER_SETTINGS, f"broker {self._static.id}"),
        )
        if self.current is before:
            return
        self._default_topic = self.current.topic_config()
        self._topics.clear()
        self._groups.clear()
        for subscriber in self._subscribers:
            subscriber(before, self.current)

    # Describing

    def describe(self, resource: Resource, names: Iterable[str] | None) -> list[DescribedSetting]:
        """The settings of a resource, all of them or those named. Raises `ApiError`."""
        wanted = None if names is None else frozenset(names)
        match resource.type:
            case ResourceType.TOPIC:
                described = self._describe_topic(resource.name)
            case ResourceType.BROKER:
                described = self._describe_broker(resource.name)
            case ResourceType.GROUP:
                described = self._describe_group(resource.name)
            case ResourceType.BROKER_LOGGER:
                described = self._describe_loggers(resource.name)
            case ResourceType.CLIENT_METRICS:
                described = self._describe_client_metrics(resource.name)
            case _:
                raise _unsupported(resource)
        return [
            entry
            for entry in described
            if not entry.setting.internal and (wanted is None or entry.setting.name in wanted)
        ]

    def describe_new_topic(self, overrides: Mapping[str, str]) -> list[DescribedSetting]:
        """What a topic created with these settings will have."""
        described = self._derived(TOPIC_SETTINGS, overrides, Source.DYNAMIC_TOPIC)
        return [entry for entry in described if not entry.setting.internal]

    def _describe_topic(self, name: str) -> Iterator[DescribedSetting]:
        if name not in self._store.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        overrides = self._store.image.topic_overrides(name)
        return self._derived(TOPIC_SETTINGS, overrides, Source.DYNAMIC_TOPIC)

    def _describe_group(self, group_id: str) -> Iterator[DescribedSetting]:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        overrides = self._store.image.config(ResourceType.GROUP, group_id)
        return self._derived(GROUP_SETTINGS, overrides, Source.DYNAMIC_GROUP)

    def _describe_client_metrics(self, name: str) -> Iterator[DescribedSetting]:
        if not name:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
            )
        overrides = self._store.image.config(ResourceType.CLIENT_METRICS, name)
        own = Source.DYNAMIC_CLIENT_METRICS
        return self._derived(CLIENT_METRICS_SETTINGS, overrides, own)

    def client_metrics(self) -> list[tuple[str, ClientMetricsConfig]]:
        """The subscriptions to clients' metrics, by name."""
        found = []
        for resource, overrides in self._store.image.configs.items():
            if resource.type is ResourceType.CLIENT_METRICS:
                usable = _usable(overrides, CLIENT_METRICS_SETTINGS, resource.name)
                found.append((resource.name, client_metrics_config(usable)))
        return found

    def _derived(
        self, settings: Mapping[str, Setting], overrides: Mapping[str, str], own: Source
    ) -> Iterator[DescribedSetting]:
        """Settings that inherit from the broker's."""
        for name, setting in settings.items():
            values = [SourcedValue(name, overrides[name], own)] if name in overrides else []
            for synonym in setting.synonyms:
                values.extend(self.current.sources(synonym.name))
            value = overrides.get(name)
            if value is None:
                value = setting.format(self.current.inherited(setting))
            source = values[0].source if values else Source.DEFAULT
            yield DescribedSetting(setting, value, source, False, tuple(values))

    def _describe_broker(self, name: str) -> Iterator[DescribedSetting]:
        if not name:
            return self._describe_cluster_default()
        self._check_is_this_broker(name)
        return self._describe_this_broker()

    def _describe_loggers(self, name: str) -> Iterator[DescribedSetting]:
        self._check_is_this_broker(name)
        for logger_name, level in logger_levels().items():
            value = SourcedValue(logger_name, level, Source.DYNAMIC_BROKER_LOGGER)
            setting = logger_setting(logger_name)
            yield DescribedSetting(setting, level, value.source, False, (value,))

    def _check_is_this_broker(self, name: str) -> None:
        if name != str(self.broker_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self.broker_id} or empty string, "
                f"but received {name}",
            )

    def _describe_this_broker(self) -> Iterator[DescribedSetting]:
        for name, setting in self._settings_of_this_broker():
            values = [source for alias in _aliases(name) for source in self.current.sources(alias)]
            own = [source for source in values if source.name == name]
            if name in BROKER_SETTINGS:
                value = setting.format(getattr(self.current, name.replace(".", "_")))
            else:
                value = own[0].value
            source = (own or values)[0].source if own or values else Source.DEFAULT
            read_only = setting.mode is Mode.READ_ONLY
            yield DescribedSetting(setting, value, source, read_only, tuple(values))

    def _settings_of_this_broker(self) -> Iterator[tuple[str, Setting]]:
        """All that a broker has, and what was set for one of its listeners."""
        yield from BROKER_SETTINGS.items()
        for name in sorted(self.current.of_listeners):
            yield name, find(BROKER_SETTINGS, name)

    def _describe_cluster_default(self) -> Iterator[DescribedSetting]:
        for name, value in sorted(self.current.dynamic_default.items()):
            source = Source.DYNAMIC_DEFAULT_BROKER
            synonyms = (SourcedValue(name, value, source),)
            setting = find(BROKER_SETTINGS, name)
            yield DescribedSetting(setting, value, source, False, synonyms)

    # Changing

    async def alter(
        self, wanted: Mapping[Resource, Sequence[Change]], *, validate_only: bool
    ) -> dict[Resource, ApiError | None]:
        """Apply changes to what resources have set, in one commit.

        Each resource is changed as a whole (None) or not at all.
        """
        outcomes: dict[Resource, ApiError | None] = {}
        edits: dict[Resource, _Edit] = {}
        for resource, changes in wanted.items():
            if resource.type is ResourceType.BROKER_LOGGER:
                outcomes[resource] = self._alter_loggers(resource, changes, validate_only)
            else:
                edits[resource] = partial(_changed, resource, changes)
        return outcomes | await self._commit(edits, validate_only)

    async def replace(
        self, wanted: Mapping[Resource, Mapping[str, str]], *, validate_only: bool
    ) -> dict[Resource, ApiError | None]:
        """Make these settings all that the resources have set: the older AlterConfigs."""
        edits = {resource: partial(_replaced, settings) for resource, settings in wanted.items()}
        return await self._commit(edits, validate_only)

    def _alter_loggers(
        self, resource: Resource, changes: Sequence[Change], validate_only: bool
    ) -> ApiError | None:
        try:
            self._check_is_this_broker(resource.name)
            change_levels(map(_as_level, changes), validate_only=validate_only)
        except ApiError as error:
            return error
        return None

    async def _commit(
        self, edits: Mapping[Resource, _Edit], validate_only: bool
    ) -> dict[Resource, ApiError | None]:
        outcomes: dict[Resource, ApiError | None] = {}

        def decide(image: ClusterImage) -> list[ConfigRecord]:
            outcomes.clear()
            records: list[ConfigRecord] = []
            for resource, edit in edits.items():
                before = image.config(resource.type, resource.name)
                try:
                    after = edit(before)
                    self._check(image, resource, before, after)
                except ApiError as error:
                    outcomes[resource] = error
                    continue
                outcomes[resource] = None
                records += _difference(resource, before, after)
            return records

        if validate_only:
            decide(self._store.image)
            return outcomes
        failed = await failures(edits, self._store.change(decide))
        return settled(outcomes, failed)

    def _check(
        self,
        image: ClusterImage,
        resource: Resource,
        before: Mapping[str, str],
        after: Mapping[str, str],
    ) -> None:
        """Refuse settings that do not fit the resource. Raises `ApiError`."""
        try:
            match resource.type:
                case ResourceType.TOPIC:
                    self._check_topic_exists(image, resource.name)
                    self.check_topic_settings(after)
                    check_disabled(
                        self.current.topic_config(before), self.current.topic_config(after)
                    )
                case ResourceType.BROKER:
                    self._check_broker(image, resource.name, before, after)
                case ResourceType.GROUP:
                    if not resource.name:
                        raise ApiError(
                            ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."
                        )
                    check_group(self.current, self.current.group_config(after))
                case ResourceType.CLIENT_METRICS:
                    if not resource.name:
                        raise ApiError(
                            ErrorCode.INVALID_REQUEST,
                            "Client metrics subscription name must not be empty",
                        )
                    client_metrics_config(after)
                case _:
                    raise _unsupported(resource)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def check_topic_settings(self, overrides: Mapping[str, str]) -> None:
        """Raises `ConfigError`."""
        config = self.current.topic_config(overrides) if overrides else self._default_topic
        check_topic(
            config,
            self.current.millstream_archive_path,
            self.current.millstream_archive_schema_registry_url,
        )

    def _check_topic_exists(self, image: ClusterImage, name: str) -> None:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if name not in image.topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            )

    def _check_broker(
        self,
        image: ClusterImage,
        name: str,
        before: Mapping[str, str],
        after: Mapping[str, str],
    ) -> None:
        if name and not name.isdigit():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid broker name {name}")
        if name and int(name) != self.broker_id and int(name) not in image.brokers:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")
        touched = [changed for changed in after if after[changed] != before.get(changed)]
        check_dynamic(touched, per_broker=bool(name))
        if name:
            config = self._static.with_dynamic(self.current.dynamic_default, after)
        else:
            config = self._static.with_dynamic(after, self.current.dynamic_broker)
        if not name or int(name) == self.broker_id:
            for check in self.checks:
                check(config)


def _aliases(name: str) -> tuple[str, ...]:
    """The broker's settings that stand for the same, finest unit first."""
    families = (
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    return next((family for family in families if name in family), (name,))


def _replaced(settings: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
    return dict(settings)


def _changed(
    resource: Resource, changes: Sequence[Change], settings: Mapping[str, str]
) -> dict[str, str]:
    after = dict(settings)
    for change in changes:
        match change.operation:
            case Operation.DELETE:
                after.pop(change.name, None)
                continue
            case Operation.SET | Operation.APPEND | Operation.SUBTRACT:
                if change.value is None:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST, f"Null value not supported for: {change.name}"
                    )
            case _:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation}"
                )
        if change.operation == Operation.SET:
            after[change.name] = change.value
        else:
            after[change.name] = _edit_list(resource, after.get(change.name), change)
    return after


def _as_level(change: Change) -> tuple[str, str | None]:
    if change.operation not in (Operation.SET, Operation.DELETE):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{Operation(change.operation).name} operation is not allowed for the BROKER_LOGGER "
            "resource",
        )
    return change.name, change.value if change.operation == Operation.SET else None


def _edit_list(resource: Resource, current: str | None, change: Change) -> str:
    setting = _settings_of_resource(resource).get(change.name)
    operation = Operation(change.operation)
    if setting is None or setting.kind is not Kind.LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {change.name} because its type is not LIST.",
        )
    text = current if current is not None else setting.default_text or ""
    items = [item for item in text.split(",") if item]
    edits = [item.strip() for item in (change.value or "").split(",")]
    if operation is Operation.APPEND:
        items.extend(item for item in edits if item not in items)
    else:
        items = [item for item in items if item not in edits]
    return ",".join(items)


def _settings_of_resource(resource: Resource) -> Mapping[str, Setting]:
    match resource.type:
        case ResourceType.TOPIC:
            return TOPIC_SETTINGS
        case ResourceType.BROKER:
            return BROKER_SETTINGS
        case ResourceType.GROUP:
            return GROUP_SETTINGS
    return {}


def _difference(
    resource: Resource, before: Mapping[str, str], after: Mapping[str, str]
) -> list[ConfigRecord]:
    records = [
        ConfigRecord(resource.type, resource.name, name, None)
        for name in before
        if name not in after
    ]
    records.extend(
        ConfigRecord(resource.type, resource.name, name, value)
        for name, value in after.items()
        if before.get(name) != value
    )
    return records


def _usable(
    overrides: Mapping[str, str], settings: Mapping[str, Setting], owner: str
) -> Mapping[str, str]:
    """The overrides without those that this version does not know or accept."""
    usable: dict[str, str] = {}
    for name, value in overrides.items():
        try:
            find(settings, name).parse(value)
        except ConfigError as error:
            logger.warning("ignoring a stored setting of %s: %s", owner, error)
        else:
            usable[name] = value
    return usable


def _unsupported(resource: Resource) -> ApiError:
    what = resource.type.name if isinstance(resource.type, ResourceType) else resource.type
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Unsupported resource type: {what}. Settings belong to TOPIC, BROKER, GROUP and "
        "CLIENT_METRICS.",
    )

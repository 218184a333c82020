"""The options of `df.write` and `df.writeStream` with `format("millstream")`.

They bear Spark's and Kafka's own names where these exist:

    topic                      where records go, whatever a column `topic` says
    valueFormat                raw (columns key and value), json or avro (all columns are the value)
    keyColumns                 with json and avro: the columns that make the key
    avroSchema                 with avro: JSON or a file; else it is derived from the columns
    schema.registry.url        with avro: values carry the id that the schema has there, as of the
                               subject avroSubject (<topic>-value); see pipelines/avro/options.py
    auto.register.schemas      false: take the schema that is there, register none
    delivery                   exactly-once or at-least-once
    shreddingKeys              encrypt values: the store of subjects' keys (millstream.shredding)
    shreddingSubject           with it: the column that names the subject; with raw only key
    shreddingFields            with it, and json: the fields to encrypt, instead of the whole value
    commitOffsets              false: do not commit the sources' offsets as a group's
    failOnDataLoss             false: go on where records of a decided batch are gone
    kafka.bootstrap.servers    and the security options, as in reading
    kafka.group.id             the group whose offsets show the query's progress
    kafka.compression.type     none, gzip, snappy, lz4 or zstd
    kafka.batch.size           bytes of a batch, at most
    kafka.transactional.id     names the query on the brokers, instead of its id
    kafka.transaction.timeout.ms   how long an undecided transaction may live
    kafka.delivery.timeout.ms  how long brokers that are away are waited for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.client.security import Security
from millstream.errors import ConfigError
from millstream.pipelines.avro.options import PREFIXED_OPTIONS as REGISTRY_ALIASES
from millstream.pipelines.avro.options import WRITE_OPTIONS as AVRO_OPTIONS
from millstream.pipelines.avro.options import AvroOptions, parse_avro_options
from millstream.pipelines.options import GivenOptions, refuse_unknown
from millstream.records.compression import Compression

FORMATS = ("raw", "json", "avro")
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)

WRITE_OPTIONS = (
    "topic",
    "valueFormat",
    "keyColumns",
    "delivery",
    "commitOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "shreddingKeys",
    "shreddingSubject",
    "shreddingFields",
    *AVRO_OPTIONS,
    *REGISTRY_ALIASES,
)
# What Spark itself puts among the options, or looks for there.
SPARK_OPTIONS = ("checkpointLocation", "queryName", "outputMode", "path")
KAFKA_OPTIONS = (
    "bootstrap.servers",
    "client.id",
    "group.id",
    "compression.type",
    "batch.size",
    "transactional.id",
    "transaction.timeout.ms",
    "request.timeout.ms",
    "delivery.timeout.ms",
)

COMPRESSIONS = tuple(it.name.lower() for it in Compression)
# Below Kafka's default for max.message.bytes, with room for what compression may add.
BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class Shredding:
    """How values are encrypted."""

    keys: str = field(repr=False)  # the address of the store, which may have a password
    subject: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class WriteOptions:
    """What a writer needs to know."""

    bootstrap_servers: str
    topic: str | None = None
    value_format: str = "raw"
    key_columns: tuple[str, ...] = ()
    avro: AvroOptions = field(default_factory=AvroOptions)
    delivery: str = EXACTLY_ONCE
    commits_offsets: bool = True
    fail_on_data_loss: bool = True
    security: Security = field(default_factory=Security)
    client_id: str = "millstream-spark"
    group_id: str | None = None
    compression: Compression = Compression.NONE
    batch_bytes_max: int = BATCH_BYTES
    transactional_id: str | None = None
    transaction_timeout_ms: int | None = None  # None: as long as the brokers allow
    request_timeout_ms: int = 30_000  # for one request
    patience_ms: int = 120_000  # for brokers that are away, or leaders that are not elected
    checkpoint_location: str | None = None
    query_name: str | None = None
    shredding: Shredding | None = None


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Raises `ConfigError` for options that are unknown, missing or do not fit together."""
    kafka = (f"kafka.{it}" for it in KAFKA_OPTIONS)
    refuse_unknown(options, (*WRITE_OPTIONS, *SPARK_OPTIONS, *kafka))
    given = GivenOptions(options)
    bootstrap = given.bootstrap_servers()
    value_format = given.one_of("valueFormat", FORMATS, "raw")
    default_delivery = EXACTLY_ONCE if streaming else AT_LEAST_ONCE
    key_columns = tuple(it.strip() for it in (given.get("keyColumns") or "").split(",") if it)
    if key_columns and value_format == "raw":
        raise ConfigError(
            "keyColumns is for valueFormat json and avro; else the column key holds the key"
        )
    compression = given.one_of("kafka.compression.type", COMPRESSIONS, "none")
    return WriteOptions(
        bootstrap_servers=bootstrap,
        topic=given.get("topic"),
        value_format=value_format,
        key_columns=key_columns,
        avro=parse_avro_options(given, value_format),
        delivery=given.one_of("delivery", DELIVERIES, default_delivery),
        commits_offsets=given.boolean("commitOffsets", True),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        security=given.security(),
        client_id=given.get("kafka.client.id") or WriteOptions.client_id,
        group_id=given.get("kafka.group.id"),
        compression=Compression[compression.upper()],
        batch_bytes_max=given.integer("kafka.batch.size", 1) or BATCH_BYTES,
        transactional_id=given.get("kafka.transactional.id"),
        transaction_timeout_ms=given.integer("kafka.transaction.timeout.ms", 1),
        request_timeout_ms=given.integer("kafka.request.timeout.ms", 1)
        or WriteOptions.request_timeout_ms,
        patience_ms=given.integer("kafka.delivery.timeout.ms", 1) or WriteOptions.patience_ms,
        checkpoint_location=given.get("checkpointLocation"),
        query_name=given.get("queryName"),
        shredding=_shredding(given, value_format),
    )


def _shredding(given: GivenOptions, value_format: str) -> Shredding | None:
    keys, subject = given.get("shreddingKeys"), given.get("shreddingSubject")
    fields = tuple(it.strip() for it in (given.get("shreddingFields") or "").split(",") if it)
    if keys is None:
        if subject is not None or fields:
            raise ConfigError("shreddingSubject and shreddingFields need shreddingKeys")
        return None
    if subject is None:
        raise ConfigError("shreddingKeys needs shreddingSubject: the column that names the subject")
    if value_format == "raw" and subject != "key":
        raise ConfigError("with valueFormat raw, shreddingSubject can only be key")
    if fields and value_format != "json":
        raise ConfigError("shreddingFields is for valueFormat json")
    if given.get("topic") is None:
        raise ConfigError("shreddingKeys needs the option topic: it is part of what is encrypted")
    return Shredding(keys, subject, fields)

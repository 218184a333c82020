"""Apache Kafka's own command-line tools do their jobs, each called as its shell script does."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.conftest import prepared
from tests.peers.java_runtime import ToolRunner, java_program
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.programs import Record

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

GROUP_COMMAND = ("consumer.group.ConsumerGroupCommand", "--timeout", "60000")


def fill(broker: BrokerUnderTest, topic: str, values: list[bytes], partition: int = 0) -> None:
    records = [Record(value=value, partition=partition) for value in values]
    prepared("confluent").produce(broker.bootstrap, topic, records)


def read_in_group(
    broker: BrokerUnderTest, tools: ToolRunner, topic: str, count: int, protocol: str = "classic"
) -> str:
    """Leave an empty group behind that has read and committed `count` records."""
    group = unique("group")
    tools.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group),
        *("--from-beginning", "--max-messages", count, "--timeout-ms", 30_000),
        *("--command-property", f"group.protocol={protocol}"),
    )
    return group


def test_topic_command_creates_describes_alters_and_deletes_a_topic(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    topic = unique("tool")
    server = ("--bootstrap-server", broker.bootstrap)

    def topics(*arguments: str) -> str:
        return tools.check("TopicCommand", *server, *arguments).stdout

    settings = ("--config", "retention.ms=60000", "--partitions", "2", "--replication-factor", "1")
    assert f"Created topic {topic}" in topics("--create", "--topic", topic, *settings)
    assert topic in topics("--list").splitlines()
    description = topics("--describe", "--topic", topic)
    assert "PartitionCount: 2" in description
    assert "ReplicationFactor: 1" in description
    assert "retention.ms=60000" in description
    assert "TopicId: " in description
    topics("--alter", "--topic", topic, "--partitions", "3")
    assert "PartitionCount: 3" in topics("--describe", "--topic", topic)
    assert topics("--describe", "--under-replicated-partitions").strip() == ""
    assert topics("--describe", "--unavailable-partitions").strip() == ""
    topics("--delete", "--topic", topic)
    assert topic not in topics("--list").splitlines()


def test_topic_command_reports_a_topic_that_exists(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    topic = broker.create_topic()
    server = ("--bootstrap-server", broker.bootstrap)
    again = tools.run("TopicCommand", *server, "--create", "--topic", topic)
    assert again.exit_code == 1
    assert f"Topic '{topic}' already exists." in again.stdout
    kept = tools.run("TopicCommand", *server, "--create", "--topic", topic, "--if-not-exists")
    assert kept.exit_code == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_producer_and_consumer_carry_keys_and_headers(
    broker: BrokerUnderTest, tools: ToolRunner, protocol: str
) -> None:
    topic = broker.create_topic()
    tools.check(
        "ConsoleProducer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--compression-codec", "zstd"),
        stdin="h1:v1\tkey-1\tvalue-1\nh2:v2\tkey-2\tvalue-2\n",
    )
    read = tools.check(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--from-beginning", "--max-messages", 2, "--timeout-ms", 30_000),
        *("--command-property", f"group.protocol={protocol}"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
        *("--formatter-property", "print.offset=true"),
    )
    assert read.lines == ["Offset:0\th1:v1\tkey-1\tvalue-1", "Offset:1\th2:v2\tkey-2\tvalue-2"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_group_command_describes_resets_and_deletes_a_group(
    broker: BrokerUnderTest, tools: ToolRunner, protocol: str
) -> None:
    topic = broker.create_topic()
    fill(broker, topic, [b"a", b"b", b"c", b"d"])
    group = read_in_group(broker, tools, topic, 3, protocol)
    server = ("--bootstrap-server", broker.bootstrap)

    def groups(*arguments: str) -> str:
        return tools.check(*GROUP_COMMAND, *server, *arguments).stdout

    assert group in groups("--list").splitlines()
    lag = next(
        line.split()
        for line in groups("--describe", "--group", group).splitlines()
        if topic in line
    )
    assert lag[:2] == [group, topic]
    assert lag[3:6] == ["3", "4", "1"] or lag[2:6] == ["0", "3", "4", "1"]
    state = groups("--describe", "--group", group, "--state")
    assert "Empty" in state
    assert groups("--describe", "--group", group, "--members").count(topic) == 0
    assert group in groups("--list", "--state", "Empty")
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
    assert topic in groups(*reset, "--dry-run")
    groups(*reset, "--execute")
    description = groups("--describe", "--group", group)
    line = next(line.split() for line in description.splitlines() if topic in line)
    assert "4" in line[-4:]
    groups("--delete-offsets", "--group", group, "--topic", topic)
    assert topic not in groups("--describe", "--group", group)
    groups("--delete", "--group", group)
    assert group not in groups("--list").splitlines()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_group_command_shows_the_members_of_a_live_group(
    broker: BrokerUnderTest, tools: ToolRunner, protocol: str
) -> None:
    topic = broker.create_topic(partitions=2)
    group = unique("group")
    member = prepared("confluent").join(
        broker.bootstrap, topic, group, {"group.protocol": protocol, "client.id": "watched"}
    )
    try:
        member.wait_until(lambda m: m.partitions == {0, 1})
        server = ("--bootstrap-server", broker.bootstrap)
        members = tools.check(
            *GROUP_COMMAND, *server, "--describe", "--group", group, "--members", "--verbose"
        )
        assert "watched" in members.stdout
        assert f"{topic}:0,1" in members.stdout or f"{topic}(0,1)" in members.stdout
        state = tools.check(
            *GROUP_COMMAND, *server, "--describe", "--group", group, "--state", "--verbose"
        )
        assert "Stable" in state.stdout
        reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute")
        refused = tools.run(*GROUP_COMMAND, *server, *reset)
        assert "Assignments can only be reset if the group" in refused.stdout + refused.stderr
    finally:
        member.kill()


def test_groups_command_lists_a_group_with_its_type_and_protocol(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    topic = broker.create_topic()
    fill(broker, topic, [b"a"])
    classic = read_in_group(broker, tools, topic, 1, "classic")
    modern = read_in_group(broker, tools, topic, 1, "consumer")
    listed = tools.check("GroupsCommand", "--bootstrap-server", broker.bootstrap, "--list").lines
    rows = {line.split()[0]: line.split()[1:] for line in listed}
    assert rows[classic] == ["Classic", "consumer"]
    assert rows[modern] == ["Consumer", "consumer"]


def test_get_offset_shell_knows_every_kind_of_offset(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    topic = broker.create_topic()
    hour_ago = int(time.time() * 1000) - 3_600_000  # much older ones would fall to retention
    records = [Record(value=b"x", partition=0, timestamp=hour_ago + later) for later in (0, 20, 10)]
    prepared("confluent").produce(broker.bootstrap, topic, records)

    def offsets(moment: str) -> list[str]:
        server = ("--bootstrap-server", broker.bootstrap)
        return tools.check("GetOffsetShell", *server, "--topic", topic, "--time", moment).lines

    assert offsets("-1") == offsets("latest") == [f"{topic}:0:3"]
    assert offsets("earliest") == [f"{topic}:0:0"]
    assert offsets("max-timestamp") == [f"{topic}:0:1"]
    assert offsets("earliest-local") == [f"{topic}:0:0"]
    assert offsets(str(hour_ago + 5)) == [f"{topic}:0:1"]


def test_delete_records_command_moves_the_log_start(
    broker: BrokerUnderTest, tools: ToolRunner, tmp_path: Path
) -> None:
    topic = broker.create_topic()
    fill(broker, topic, [b"a", b"b", b"c"])
    request = tmp_path / "offsets.json"
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}
    request.write_text(json.dumps(wanted))
    server = ("--bootstrap-server", broker.bootstrap)
    result = tools.check("DeleteRecordsCommand", *server, "--offset-json-file", request)
    assert "low_watermark: 2" in result.stdout
    left = tools.check("GetOffsetShell", *server, "--topic", topic, "--time", "earliest")
    assert left.lines == [f"{topic}:0:2"]


def test_log_dirs_command_reports_sizes(broker: BrokerUnderTest, tools: ToolRunner) -> None:
    topic = broker.create_topic()
    fill(broker, topic, [b"x" * 500])
    server = ("--bootstrap-server", broker.bootstrap)
    output = tools.check("LogDirsCommand", *server, "--describe", "--topic-list", topic).stdout
    answer = json.loads(output.splitlines()[-1])
    (directory,) = answer["brokers"][0]["logDirs"]
    assert directory["error"] is None
    (partition,) = directory["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 500


def test_broker_api_versions_command_finds_everything_usable(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    output = tools.check("BrokerApiVersionsCommand", *server).stdout
    assert "Produce(0): 0 to 13 [usable: 13]" in output
    assert "Fetch(1): 4 to 18 [usable: 18]" in output
    assert "ConsumerGroupHeartbeat(68): 0 to 1 [usable: 1]" in output


def test_leader_election_command_says_that_the_preferred_leader_leads(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    topic = broker.create_topic()
    arguments = ("--topic", topic, "--partition", "0", "--election-type", "preferred")
    result = tools.run("LeaderElectionCommand", "--bootstrap-server", broker.bootstrap, *arguments)
    assert f"Valid replica already elected for partitions {topic}-0" in result.stdout


def test_metadata_quorum_command_describes_the_metadata_log(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    def describe(what: str) -> list[str]:
        arguments = ("--bootstrap-server", broker.bootstrap, "describe", what)
        return tools.check("MetadataQuorumCommand", *arguments).lines

    status = dict(line.split(":", 1) for line in describe("--status"))
    assert int(status["LeaderEpoch"]) > 0
    assert int(status["HighWatermark"]) > 0
    assert status["MaxFollowerLag"].strip() == "0"
    header, line = describe("--replication")
    row = dict(zip(header.split(), line.split(), strict=False))
    assert row["NodeId"] == status["LeaderId"].strip()
    assert (row["Lag"], line.split()[-1]) == ("0", "Leader")


def test_feature_command_describes_group_version(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    lines = tools.check("FeatureCommand", *server, "describe").lines
    feature = next(line for line in lines if line.startswith("Feature: group.version"))
    assert "FinalizedVersionLevel: 1" in feature


def test_config_command_alters_and_describes_a_topic(
    broker: BrokerUnderTest, tools: ToolRunner
) -> None:
    topic = broker.create_topic()
    entity = (
        "--bootstrap-server",
        broker.bootstrap,
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
    )

    def configs(*arguments: str) -> str:
        return tools.check("kafka.admin.ConfigCommand", *entity, *arguments).stdout

    configs("--alter", "--add-config", "retention.ms=1234567,cleanup.policy=[compact,delete]")
    described = configs("--describe")
    assert "retention.ms=1234567" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG" in described
    configs("--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in configs("--describe")
    assert "segment.bytes=" in configs("--describe", "--all")


def test_config_command_describes_the_broker(broker: BrokerUnderTest, tools: ToolRunner) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    entity = ("--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    described = tools.check("kafka.admin.ConfigCommand", *server, *entity).stdout
    assert "auto.create.topics.enable=true" in described
    assert "offsets.topic.num.partitions=5" in described


def test_verifiable_producer_and_consumer_agree(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=3)
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--max-messages", "300")
    produced = run_java("VerifiableProducer", *server, "--acks", "-1")
    assert [event for event in produced if event["name"] == "tool_data"][-1]["acked"] == 300
    options = ("--group-id", unique("group"), "--reset-policy", "earliest")
    consumed = run_java("VerifiableConsumer", *server, *options)
    read = sum(event["count"] for event in consumed if event["name"] == "records_consumed")
    assert read == 300
    commits = [event for event in consumed if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)


def run_java(tool: str, *arguments: str) -> list[dict[str, object]]:
    """These two call System.exit, which would end the JVM that the other tools share."""
    command = [*java_program(f"org.apache.kafka.tools.{tool}"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert result.returncode == 0, result
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def test_performance_tools_measure(broker: BrokerUnderTest, tools: ToolRunner) -> None:
    topic = broker.create_topic()
    server = ("--bootstrap-server", broker.bootstrap)
    produced = tools.check(
        "ProducerPerformance",
        *(*server, "--topic", topic, "--num-records", 2000, "--record-size", 200),
        *("--throughput", -1, "--command-property", "acks=all"),
    )
    assert "2000 records sent" in produced.stdout
    consumed = tools.check(
        "ConsumerPerformance",
        *(*server, "--topic", topic, "--num-records", 2000, "--timeout", 20_000),
        "--hide-header",
    )
    assert int(consumed.lines[-1].split(",")[4]) >= 2000
    latency = tools.check(
        "EndToEndLatency",
        *(*server, "--topic", broker.create_topic(), "--num-records", 50),
        *("--producer-acks", "all", "--record-size", 100),
    )
    assert "Percentiles" in latency.stdout

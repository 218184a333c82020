"""Apache Kafka's own tools manage users, rights and quotas of either broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.test_authentication import Scram
from tests.peers.java_runtime import ToolRunner
from tests.peers.patience import wait_until
from tests.peers.secured import ADMIN, PLAIN_MODULE, SaslRefused, Secured, password_of

pytestmark = [pytest.mark.java, pytest.mark.slow]

SECURED_USERS = ("alice", "bob")


@pytest.fixture
def admin(secured: Secured, tmp_path: Path) -> list[str]:
    """Options of every tool."""
    return _options(secured, tmp_path, ADMIN)


def _options(secured: Secured, directory: Path, user: str) -> list[str]:
    settings = directory / f"{user}.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="{user}" '
        f'password="{password_of(user)}";\n'
    )
    address = secured.address("SASL_PLAINTEXT")
    return ["--bootstrap-server", address, "--command-config", str(settings)]


class Acls:
    def __init__(self, tools: ToolRunner, options: list[str]) -> None:
        self._tools = tools
        self._options = options

    def run(self, *arguments: str) -> None:
        self._tools.check("AclCommand", *self._options, *arguments)

    def listed(self, *arguments: str) -> set[str]:
        """As lines `TOPIC LITERAL name: User:x * READ ALLOW`."""
        result = self._tools.check("AclCommand", *self._options, "--list", *arguments)
        found, resource = set(), ""
        for line in result.lines:
            if head := re.search(r"resourceType=(\w+), name=(.*), patternType=(\w+)\)", line):
                resource = f"{head[1]} {head[3]} {head[2]}"
            elif entry := re.search(
                r"principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)", line
            ):
                found.add(f"{resource}: {entry[1]} {entry[2]} {entry[3]} {entry[4]}")
        return found


@pytest.fixture
def acls(tools: ToolRunner, admin: list[str]) -> Acls:
    return Acls(tools, admin)


def test_acl_command_adds_lists_and_removes(acls: Acls) -> None:
    one = ["--topic", "orders", "--allow-principal", "User:one"]
    acls.run("--add", *one, "--operation", "Read", "--operation", "Describe")
    wanted = {f"TOPIC LITERAL orders: User:one * {it} ALLOW" for it in ("READ", "DESCRIBE")}
    wait_until(lambda: acls.listed("--topic", "orders") == wanted)
    acls.run("--add", *one, "--operation", "Read")  # again: nothing changes
    assert acls.listed("--topic", "orders") == wanted
    acls.run("--remove", "--force", *one, "--operation", "Read")
    wanted = {"TOPIC LITERAL orders: User:one * DESCRIBE ALLOW"}
    wait_until(lambda: acls.listed("--topic", "orders") == wanted)
    acls.run("--remove", "--force", "--topic", "orders")
    wait_until(lambda: acls.listed("--topic", "orders") == set())


def test_acl_command_knows_prefixes_hosts_and_denials(acls: Acls) -> None:
    prefix = ["--topic", "two-", "--resource-pattern-type", "prefixed"]
    acls.run(
        *("--add", "--deny-principal", "User:two", "--deny-host", "10.0.0.1"),
        *("--operation", "All", *prefix),
    )
    acls.run("--add", "--allow-principal", "User:*", "--operation", "Write", "--topic", "two-a")
    both = {
        "TOPIC PREFIXED two-: User:two 10.0.0.1 ALL DENY",
        "TOPIC LITERAL two-a: User:* * WRITE ALLOW",
    }
    match = ["--topic", "two-a", "--resource-pattern-type", "match"]
    wait_until(lambda: acls.listed(*match) == both)
    assert acls.listed(*prefix) == {"TOPIC PREFIXED two-: User:two 10.0.0.1 ALL DENY"}
    assert acls.listed("--principal", "User:two") == {
        "TOPIC PREFIXED two-: User:two 10.0.0.1 ALL DENY"
    }
    acls.run("--remove", "--force", *match)
    wait_until(lambda: acls.listed(*match) == set())


def test_acl_command_gives_the_rights_of_consumers_and_producers(acls: Acls) -> None:
    three = ["--allow-principal", "User:three", "--topic", "three"]
    acls.run("--add", "--consumer", "--group", "three-group", *three)
    acls.run("--add", "--producer", "--transactional-id", "three-txn", "--idempotent", *three)
    topic = {"READ", "DESCRIBE", "WRITE", "CREATE"}
    wanted = {f"TOPIC LITERAL three: User:three * {it} ALLOW" for it in topic}
    wanted.add("GROUP LITERAL three-group: User:three * READ ALLOW")
    for operation in ("WRITE", "DESCRIBE"):
        wanted.add(f"TRANSACTIONAL_ID LITERAL three-txn: User:three * {operation} ALLOW")
    wanted.add("CLUSTER LITERAL kafka-cluster: User:three * IDEMPOTENT_WRITE ALLOW")
    wait_until(lambda: acls.listed("--principal", "User:three") == wanted)


def test_acl_command_of_a_user_without_rights(
    secured: Secured, tools: ToolRunner, tmp_path: Path
) -> None:
    result = tools.run("AclCommand", *_options(secured, tmp_path, "bob"), "--list")
    assert "ClusterAuthorizationException" in result.stdout + result.stderr


def test_config_command_manages_scram_users(
    secured: Secured, tools: ToolRunner, admin: list[str]
) -> None:
    entity = ["--entity-type", "users", "--entity-name", "sandra"]

    def configs(*arguments: str) -> str:
        return tools.check("kafka.admin.ConfigCommand", *admin, *entity, *arguments).stdout

    def comes_in(password: str) -> bool:
        try:
            with secured.stranger() as wire:
                Scram(wire, "SCRAM-SHA-512").sign_in("sandra", password)
        except SaslRefused:
            return False
        return True

    configs("--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=first]")
    wait_until(lambda: comes_in("first"))
    assert "SCRAM-SHA-512=iterations=8192" in configs("--describe")
    configs("--alter", "--add-config", "SCRAM-SHA-512=[password=second]")
    wait_until(lambda: comes_in("second"))
    assert not comes_in("first")
    assert "SCRAM-SHA-512=iterations=4096" in configs("--describe")
    every = tools.check(
        "kafka.admin.ConfigCommand", *admin, "--entity-type", "users", "--describe"
    ).stdout
    assert "'sandra'" in every
    assert "second" not in every
    configs("--alter", "--delete-config", "SCRAM-SHA-512")
    wait_until(lambda: not comes_in("second"))
    assert "SCRAM-SHA-512" not in configs("--describe")


@pytest.mark.parametrize(
    ("entity", "quota", "described"),
    [
        (
            ["--entity-type", "users", "--entity-name", "alice"],
            "producer_byte_rate=1000000,consumer_byte_rate=2000000",
            "Quota configs for user-principal 'alice' are",
        ),
        (
            ["--entity-type", "users", "--entity-default"],
            "request_percentage=200",
            "Quota configs for the default user-principal are",
        ),
        (
            ["--entity-type", "clients", "--entity-name", "app"],
            "controller_mutation_rate=10",
            "Quota configs for client-id 'app' are",
        ),
        (
            [
                "--entity-type",
                "users",
                "--entity-name",
                "a",
                "--entity-type",
                "clients",
                "--entity-name",
                "b",
            ],
            "producer_byte_rate=5000",
            "Quota configs for user-principal 'a', client-id 'b' are",
        ),
        (
            ["--entity-type", "ips", "--entity-name", "10.1.2.3"],
            "connection_creation_rate=7",
            "Quota configs for ip '10.1.2.3' are",
        ),
    ],
)
def test_config_command_manages_quotas(
    tools: ToolRunner, admin: list[str], entity: list[str], quota: str, described: str
) -> None:
    def configs(*arguments: str) -> str:
        return tools.check("kafka.admin.ConfigCommand", *admin, *entity, *arguments).stdout

    configs("--alter", "--add-config", quota)

    def is_described() -> bool:
        line = next((it for it in configs("--describe").splitlines() if described in it), "")
        said = dict(re.findall(r"(\w+)=([\d.]+)", line))
        wanted = dict(it.split("=") for it in quota.split(","))
        return {name: float(value) for name, value in said.items()} == {
            name: float(value) for name, value in wanted.items()
        }

    wait_until(is_described)
    names = ",".join(it.partition("=")[0] for it in quota.split(","))
    configs("--alter", "--delete-config", names)
    wait_until(lambda: described not in configs("--describe"))


def test_config_command_of_a_user_without_rights(
    secured: Secured, tools: ToolRunner, tmp_path: Path
) -> None:
    options = _options(secured, tmp_path, "bob")
    for entity, change in (
        ("users", "SCRAM-SHA-256=[password=x]"),
        ("clients", "producer_byte_rate=1"),
    ):
        result = tools.run(
            *("kafka.admin.ConfigCommand", *options, "--alter", "--entity-type", entity),
            *("--entity-name", "bob", "--add-config", change),
        )
        assert result.exit_code != 0
        assert "ClusterAuthorizationException" in result.stdout + result.stderr

"""Commands on a secured cluster: each with the rights it needs and no more, and without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from millstream.cli.options import CLIENT_CONFIG_VARIABLE
from millstream.client.security import Security
from millstream.pipelines.running.progress import GroupProgress
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import ADMIN, Secured, password_of, start_secured
from tests.peers.secured_clients import KINDS, admin_of, allow, properties_of, settings_of

HIDDEN = "there is no topic 't', or the user has no right on it"


class Case(NamedTuple):
    command: str
    rights: tuple[str, ...]
    refusal: str | None  # None: nothing is refused, but nothing is shown
    shown: str = ""
    stdin: str = ""
    is_ours: bool = False  # Apache Kafka cannot do it


CASES = [
    Case("topic create new", ("CREATE topic new",), "needs Create on the topic", "created"),
    Case("topic list", ("DESCRIBE topic t",), None, "t"),
    Case("topic describe t", ("DESCRIBE topic t", "DESCRIBE_CONFIGS topic t"), HIDDEN, "t"),
    Case(
        "topic alter t --config retention.ms=86400000",
        ("DESCRIBE topic t", "ALTER_CONFIGS topic t"),
        HIDDEN,
        "altered",
    ),
    Case("topic delete old --yes", ("DELETE topic old",), "no topic 'old', or the user", "deleted"),
    Case(
        "topic elect t", ("DESCRIBE topic t", "ALTER broker kafka-cluster"), HIDDEN, ""
    ),
    Case("produce t", ("WRITE topic t",), "the user needs Write on the topic", "", "more\n"),
    Case("consume t --from-beginning --no-follow", ("READ topic t",), HIDDEN, "one"),
    Case(
        "consume t --group other --from-beginning --count 1",
        ("READ topic t", "READ group other"),
        "the user needs Read on the topic, and on the group",
        "one",
    ),
    Case("group list", ("DESCRIBE group g",), None, "g"),
    Case("group describe g", ("DESCRIBE group g", "DESCRIBE topic t"), "Describe on the", "t"),
    Case(
        "group reset g --topic t --to-earliest --execute",
        ("READ group g", "READ topic t"),
        "Read on the group and on its topics",
        "t",
    ),
    Case("group delete gone", ("DELETE group gone",), "needs Delete on the group", "deleted"),
    Case("transaction list", ("DESCRIBE transactional_id tx",), None, "tx"),
    Case(
        "transaction describe tx",
        ("DESCRIBE transactional_id tx",),
        "the user needs Describe on the transactional id",
        "tx",
    ),
    Case("dlq list", ("READ topic dlq.t",), None, "dlq.t"),
    Case(
        "dlq show dlq.t",
        ("READ topic dlq.t", "DESCRIBE group millstream-dlq-replay"),
        "no topic 'dlq.t', or the user has no right on it",
        "",
    ),
    Case(
        "queries create q --schema 'a_int'",
        ("CREATE topic q", "READ topic q", "WRITE topic q"),
        "the user needs",
        "",
    ),
    Case("query 'select_*_from_t'", ("READ topic t",), "the user needs", "one"),
    Case(
        "excise --topic people --key alice --yes",
        ("READ topic people", "ALTER_CONFIGS topic people", "ALL topic __excision*"),
        "no topic 'people', or the user has no right on it",
        "removed 1 records",
        is_ours=True,
    ),
    Case("user list", ("DESCRIBE broker kafka-cluster",), "Describe on the cluster", "no users"),
    Case("user create new --generate", ("ALTER broker kafka-cluster",), "cluster", "created"),
    Case("acl list", ("DESCRIBE broker kafka-cluster",), "needs Describe on the cluster", "User:"),
    Case("cluster", ("DESCRIBE broker kafka-cluster",), None, "127.0.0.1"),
]  # fmt: skip
USERS = [f"u{number}" for number in range(len(CASES))]


@pytest.fixture(scope="module", params=KINDS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    running = start_secured(request.param, directory, USERS)
    try:
        fill(running)
        yield running
    finally:
        running.stop()


def fill(secured: Secured) -> None:
    """What the commands are about, made by the administrator."""
    admin = admin_of(secured)
    topics = [NewTopic(name, 1) for name in ("t", "old", "dlq.t", "people")]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_SECONDS)
    settings = Security.from_settings(settings_of(secured, ADMIN)).librdkafka()
    settings |= {"bootstrap.servers": secured.address("SASL_SSL"), "log_level": 0}
    producer = Producer(settings | {"transactional.id": "tx"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"one")
    producer.produce("people", b"hers", b"alice")
    producer.commit_transaction(PATIENCE_SECONDS)
    for group in ("g", "gone"):
        progress = GroupProgress(
            secured.address("SASL_SSL"), group, security=settings_of(secured, ADMIN)
        )
        progress.commit({("t", 0): 1})
        progress.close()


@pytest.fixture
def as_user(
    run: Run, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    def choose(user: str) -> None:
        monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, str(properties_of(secured, user, tmp_path)))

    return choose


@pytest.mark.parametrize(
    ("case", "user"), list(zip(CASES, USERS, strict=True)), ids=lambda it: str(it[0])
)
def test_command_needs_its_rights_and_no_others(
    run: Run, secured: Secured, as_user: Callable[[str], None], case: Case, user: str
) -> None:
    if case.is_ours and secured.kind != "millstream":
        pytest.skip("only Millstream does that")
    as_user(user)
    words = [it.strip("'").replace("_", " ") if "'" in it else it for it in case.command.split()]
    before = run(*words, stdin=case.stdin)
    if case.refusal is None:
        assert before.exit_code == 0, before.err
    else:
        assert before.exit_code == 1, before.out
        assert case.refusal in before.err
    assert password_of(user) not in before.out + before.err
    allow(secured, user, case.rights)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # brokers learn of rights a moment later
        after = run(*words, stdin=case.stdin)
        if (after.exit_code == 0 and case.shown in after.out) or time.monotonic() > deadline:
            break
    assert after.exit_code == 0, after.err
    assert case.shown in after.out


def test_wrong_password_is_said_at_once(run: Run, secured: Secured, tmp_path: Path) -> None:
    file = properties_of(secured, ADMIN, tmp_path)
    file.write_text(file.read_text().replace(password_of(ADMIN), "wr0ng"))
    outcome = run("--client-config", str(file), "topic", "list")
    assert outcome.exit_code == 1
    assert "SASL_AUTHENTICATION_FAILED" in outcome.err
    assert "wr0ng" not in outcome.err


def test_settings_that_do_not_fit_are_said_at_once(
    run: Run, secured: Secured, tmp_path: Path
) -> None:
    file = properties_of(secured, ADMIN, tmp_path)
    text = file.read_text()
    file.write_text("".join(it for it in text.splitlines(True) if "ssl.ca" not in it))
    outcome = run("--client-config", str(file), "topic", "list")
    assert outcome.exit_code == 1
    assert "set ssl.ca.location to the certificates that you trust" in outcome.err
    file.write_text(text.replace("sasl.username", "sasl.user"))
    outcome = run("--client-config", str(file), "topic", "list")
    assert "unknown setting sasl.user; did you mean sasl.username" in outcome.err


def test_javas_names_reach_every_client(run: Run, secured: Secured, tmp_path: Path) -> None:
    """Also the one for requests that confluent-kafka does not have."""
    java = Security.from_settings(settings_of(secured, ADMIN)).java()
    file = tmp_path / "java.properties"
    lines = {"bootstrap.servers": secured.address("SASL_SSL")} | java
    file.write_text(
        "".join(f"{name}={value}\n" for name, value in lines.items()).replace("\\", "\\\\")
    )
    for command in (["topic", "list"], ["transaction", "list"]):
        outcome = run("--client-config", str(file), *command)
        assert outcome.exit_code == 0, outcome.err
        assert "t" in outcome.out

"""A topic as a queue of jobs: workers take records and acknowledge each one.

Three kinds of jobs: most succeed; one fails twice and is retried with a growing delay, while the
others continue; one can never succeed, is rejected, and becomes a dead letter.
"""

from collections import Counter
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from millstream import Broker

JOBS = [*(f"job-{number}" for number in range(20)), "flaky", "hopeless"]
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.retry.backoff.ms": "100",
    "errors.deadletterqueue.topic.name": "dlq.jobs",
    "errors.deadletterqueue.copy.record.enable": "true",
}


def prepare(servers: str) -> None:
    """The topics, and the settings of the group `workers`."""
    admin = AdminClient({"bootstrap.servers": servers})
    letters = NewTopic("dlq.jobs", 1, config={"errors.deadletterqueue.group.enable": "true"})
    for created in admin.create_topics([NewTopic("jobs", 1), letters]).values():
        created.result()
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in SETTINGS.items()
    ]
    group = ConfigResource(ConfigResource.Type.GROUP, "workers", incremental_configs=changes)
    admin.incremental_alter_configs([group])[group].result()


def send_jobs(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for job in JOBS:
        producer.produce("jobs", value=job)
    producer.flush()


def work(job: str, delivery: int) -> AcknowledgeType:
    """Do the job; returns the acknowledgement."""
    if job == "hopeless":
        return AcknowledgeType.REJECT  # never again: a dead letter
    if job == "flaky" and delivery < 3:
        return AcknowledgeType.RELEASE  # retried later, possibly by another worker
    return AcknowledgeType.ACCEPT


def run_worker(servers: str, done_after: int) -> Counter[str]:
    """Process jobs until that many are finished; returns the delivery count of each."""
    worker = ShareConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "workers",
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    worker.subscribe(["jobs"])
    deliveries: Counter[str] = Counter()
    done = 0
    while done < done_after:
        for record in worker.poll(1.0):
            job = record.value().decode()
            deliveries[job] += 1
            outcome = work(job, record.delivery_count())
            worker.acknowledge(record, outcome)
            done += outcome != AcknowledgeType.RELEASE
        worker.commit_sync()
    worker.close()
    return deliveries


def read_letter(servers: str) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "post", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["dlq.jobs"])
    while (letter := consumer.poll(1.0)) is None or letter.error():
        pass
    consumer.close()
    return letter


def main() -> None:
    with Broker.start() as broker:
        servers = broker.bootstrap_servers
        prepare(servers)
        send_jobs(servers)

        deliveries = run_worker(servers, done_after=len(JOBS))
        print("delivered more than once:", [it for it, n in deliveries.items() if n > 1])
        assert deliveries == Counter(JOBS) + Counter({"flaky": 2})

        letter = read_letter(servers)
        headers = {name: value.decode() for name, value in letter.headers()}
        print("dead letter:", letter.value(), headers["__dlq.errors.message"])
        assert letter.value() == b"hopeless"
        assert headers["__dlq.errors.topic"] == "jobs"
        assert headers["__dlq.errors.reason"] == "rejected"


if __name__ == "__main__":
    main()

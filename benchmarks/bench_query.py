"""Records per second of `millstream query`, beside kcat and jq.

A topic of JSON records of 190 bytes in four partitions is searched for a text, filtered by a field,
and aggregated by a field. kcat writes the values to a pipe, from which jq reads them; both run on
all cores, as our threads do. The time is that of the whole command, also ours, except for Python's
start: it is a function in this process. Text search has bars: a million records per second, and
five times kcat and jq.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from confluent_kafka import Producer

from benchmarks.measurement import Measurement, compare
from benchmarks.targets import Scale, Target, create_topic
from millstream.query import Query

RECORDS = 1_000_000
PARTITIONS = 4
CUSTOMERS = 1000
PEER = "kcat and jq"
NEEDLE = "remark 77777 "


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for target in targets:
        if target.name == "null":
            continue
        count = scale.of(RECORDS)
        topic = create_topic(target, partitions=PARTITIONS)
        fill(target.bootstrap, topic, count)
        needle = NEEDLE if count > 77_777 else "remark 777 "
        yield from search(target, topic, count, needle, scale)
        yield from fields(target, topic, count, scale)


def search(
    target: Target, topic: str, count: int, needle: str, scale: Scale
) -> Iterator[Measurement]:
    sql = (
        f"""select _partition, _offset, _value from "{topic}" where contains(_value, '{needle}')"""
    )
    filter_ = f'select(.text | contains("{needle}"))'
    yield contest(f"text search on {target.name}", target, topic, count, sql, filter_, scale, 5.0)


def fields(target: Target, topic: str, count: int, scale: Scale) -> Iterator[Measurement]:
    sql = f"""select id, amount from "{topic}" where customer = 77 and amount > 990"""
    filter_ = "select(.customer == 77 and .amount > 990) | [.id, .amount]"
    yield contest(f"filter by fields on {target.name}", target, topic, count, sql, filter_, scale)


def contest(
    name: str,
    target: Target,
    topic: str,
    count: int,
    sql: str,
    filter_: str,
    scale: Scale,
    bar: float | None = None,
) -> Measurement:
    measurement = Measurement(name, "records/s", bar=bar, peer=PEER, subject="millstream query")
    answers: set[int] = set()
    contenders: dict[str, Callable[[], float]] = {
        "millstream query": lambda: timed(count, answers, lambda: ours(target.bootstrap, sql))
    }
    if shutil.which("kcat") and shutil.which("jq"):
        contenders[PEER] = lambda: timed(
            count, answers, lambda: theirs(target.bootstrap, topic, filter_)
        )
    compare(measurement, contenders, scale.rounds, warm_up=1, shown=True)
    assert len(answers) == 1, f"{name}: the answers differ: {answers}"
    return measurement


def timed(count: int, answers: set[int], action: Callable[[], int]) -> float:
    start = time.perf_counter()
    answers.add(action())
    return count / (time.perf_counter() - start)


def ours(bootstrap: str, sql: str) -> int:
    with Query(sql, bootstrap) as running:
        return running.arrow().num_rows


def theirs(bootstrap: str, topic: str, filter_: str) -> int:
    reader = subprocess.Popen(
        ["kcat", "-C", "-q", "-e", "-o", "beginning", "-b", bootstrap, "-t", topic],
        stdout=subprocess.PIPE,
    )
    found = subprocess.run(
        ["jq", "-c", filter_], stdin=reader.stdout, stdout=subprocess.PIPE, check=True
    )
    assert reader.wait() == 0
    return found.stdout.count(b"\n")


def fill(bootstrap: str, topic: str, count: int) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 50,
        "queue.buffering.max.messages": 200_000,
    }
    producer = Producer(settings)
    for number in range(count):
        value = {
            "id": number,
            "customer": number % CUSTOMERS,
            "amount": number * 7919 % 100_000 / 100,
            "text": f"a remark {number} of some length, which is there to be searched through",
            "at": "2026-11-17T12:00:00.000Z",
            "state": "paid" if number % 3 else "open",
        }
        while True:
            try:
                producer.produce(topic, json.dumps(value).encode(), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()

"""`millstream excise`: removes records of a key or a predicate from a topic's history, with a
receipt."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from millstream.admin.letters import dead_letter_topics
from millstream.admin.offsets import known_topics
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import (
    BOOTSTRAP_DEFAULT,
    AsJson,
    BootstrapServer,
    ClientConfig,
    hand_down,
)
from millstream.cli.output import console, error_console, note, print_json, print_rows, warn
from millstream.excision.derived import Places, plan_derived, read_places
from millstream.excision.documents import (
    KEY,
    NOT_SEARCHED,
    WHERE,
    DerivedPlan,
    Job,
    Receipt,
    Selector,
    TopicPlan,
)
from millstream.excision.history import History
from millstream.excision.jobs import begin, check_room, finish
from millstream.excision.ledger import Excision, Ledger
from millstream.excision.selection import (
    OUTPUT,
    SNAPSHOTS,
    TOPIC,
    Access,
    NothingFound,
    find_letters,
    find_topic,
)
from millstream.excision.verification import verify_receipt

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    invoke_without_command=True,
)

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="The topic; also several times."),
]
Key = Annotated[
    str | None, typer.Option("--key", "-k", help="Records with this key.", show_default=False)
]
KeyHex = Annotated[str | None, typer.Option("--key-hex", help="The same for keys of any bytes.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="Records for which this predicate holds; columns as in `millstream query`.",
    ),
]
Sinks = Annotated[
    list[Path] | None,
    typer.Option(
        "--sink", metavar="SINK.TOML", help="Also from this sink of `millstream connect`."
    ),
]
Pipelines = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline", metavar="FILE.py:NAME", help="Also from this pipeline: state, tables, topics."
    ),
]
PlacesFile = Annotated[
    Path | None,
    typer.Option("--places", metavar="FILE", help="A TOML file that lists sinks and pipelines."),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for all replicas.")
]
ReceiptFile = Annotated[
    Path | None, typer.Option("--receipt", metavar="FILE", help="Also write the receipt here.")
]
TIMEOUT_SECONDS = 300.0
DONE_HOW = {
    "rebuild": "filled again from the log, beside the old rows",
    "rows of the key": "the rows of the key are deleted",
    "views": "computed again from the log, beside the old views; stop the pipeline until then",
    "in place": "emptied and computed again from the log; stop the pipeline until then",
    "version": "deploy another version, and remove the earlier ones; the job waits for that",
}


@app.callback()
def excise(
    context: typer.Context,
    topic: Topics = None,
    key: Key = None,
    key_hex: KeyHex = None,
    where: Where = None,
    sink: Sinks = None,
    pipeline: Pipelines = None,
    places: PlacesFile = None,
    reason: Annotated[
        str, typer.Option("--reason", help="For the receipt: a ticket, the legal basis.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    timeout: Timeout = TIMEOUT_SECONDS,
    receipt: ReceiptFile = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Remove records of a key or a predicate from a topic's history, with a receipt.

    First it shows what it would remove, and where: in the topic, and in dead letters of its
    records. Then every replica rewrites its files; offsets do not change, and readers see a gap.
    Sinks and pipelines that are named are computed again without these records. At the end there
    is a receipt. An interrupted excision goes on by itself, see `resume`.

    [bold]Examples[/bold]

    \b
      millstream excise --topic orders --key alice --dry-run
      millstream excise --topic orders --key alice --reason "ticket 4711"
      millstream excise -t orders -k alice --sink search.toml --pipeline shop.py:revenue
      millstream excise --topic orders --where "_value->>'$.email' = 'a@example.org'"
      millstream excise verify receipt-1.json --key alice
    """
    if context.invoked_subcommand is not None:
        hand_down(context, bootstrap_server, client_config)
        return
    selector = selector_of(key, key_hex, where)
    if not topic or selector is None:
        raise usage_error("name --topic, and one of --key, --key-hex and --where")
    cluster = Cluster.connect(bootstrap_server, client_config)
    chosen = places_of(places, sink, pipeline)
    derived = plan_derived(cluster.protocol, chosen, topic, selector, cluster.bootstrap_servers)
    plans = find(cluster, topic, selector, derived.topics)
    if dry_run or not as_json:
        show_plan(plans, selector, derived.plans, as_json=as_json)
    if dry_run:
        note("dry run: nothing was removed")
        return
    if not yes:
        confirm(topic[0], plans)
    with reported(as_json):
        job = begin(
            cluster.protocol,
            plans,
            selector,
            requested_by=requester(cluster),
            reason=reason,
            derived=derived.plans,
        )
        note(f"job {job.id} is durable: the brokers go on by themselves")
        done = wait(cluster, job, selector, timeout)
    show_receipt(done, receipt, as_json=as_json)


@app.command()
def resume(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The number of the job.")],
    key: Key = None,
    key_hex: KeyHex = None,
    where: Where = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    receipt: ReceiptFile = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Go on with a job whose client was interrupted, and write its receipt.

    Give the key again if rows of sinks are deleted by it: it is not written down.

    [bold]Examples[/bold]

    \b
      millstream excise list
      millstream excise resume 3f9c01a2b4d6
      millstream excise resume 3f9c01a2b4d6 --key alice
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    jobs = History(cluster.protocol).jobs()
    if job not in jobs:
        raise usage_error(f"there is no job {job}; see `millstream excise list`")
    selector = selector_of(key, key_hex, where)
    show_receipt(wait(cluster, jobs[job], selector, timeout), receipt, as_json=as_json)


@app.command("list")
def list_jobs(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List all excisions: those that are complete, and those that brokers are working on.

    [bold]Examples[/bold]

    \b
      millstream excise list
      millstream excise list --json | jq '.[] | select(.state != "complete")'
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    found = Ledger().read(cluster.protocol)
    rows = [row_of(it) for it in found.excisions]
    for problem in found.problems:
        warn(problem)
    if as_json:
        print_json(rows)
        return
    columns = {
        "job": "JOB",
        "requested": "REQUESTED",
        "by": "BY",
        "topic": "TOPIC",
        "records": "RECORDS",
        "state": "STATE",
        "receipt": "RECEIPT",
    }
    print_rows(rows, columns, empty="no excisions")


@app.command()
def verify(
    receipt: Annotated[
        str, typer.Argument(metavar="RECEIPT", help="A receipt's file, or its number.")
    ],
    key: Key = None,
    key_hex: KeyHex = None,
    where: Where = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Look again: the chain of receipts is intact, and none of the records is there.

    With the key or the predicate it also searches the topic again.

    [bold]Examples[/bold]

    \b
      millstream excise verify 1
      millstream excise verify receipt-1.json --key alice
    """
    cluster = Cluster.connect(bootstrap_server, client_config)
    found = load_receipt(cluster, receipt)
    with searching(f"reading {found.job.topics[0].topic}") as advance:
        outcome = verify_receipt(
            cluster.protocol,
            found,
            selector=selector_of(key, key_hex, where),
            access=access_to(cluster),
            on_progress=advance,
        )
    if as_json:
        print_json(asdict(outcome))
    if outcome.problems:
        raise CommandFailed("; ".join(outcome.problems))
    for it in outcome.unseen:
        warn(f"not looked at: {it}")
    if not as_json:
        console().print(
            f"receipt {found.number} is intact; read {outcome.records_read:,} records, and none "
            f"of the {found.job.records:,} is there",
            markup=False,
        )


def selector_of(key: str | None, key_hex: str | None, where: str | None) -> Selector | None:
    """Raises `CommandFailed` for more than one, or an empty one: it would select what nobody
    meant."""
    given = [it for it in (key, key_hex, where) if it is not None]
    if len(given) > 1:
        raise usage_error("give one of --key, --key-hex and --where")
    if not given:
        return None
    if not given[0].strip():
        raise usage_error("the key or predicate is empty")
    if where is not None:
        return Selector(WHERE, where.encode())
    if key is not None:
        return Selector(KEY, key.encode())
    try:
        return Selector(KEY, bytes.fromhex(given[0]))
    except ValueError as error:
        raise usage_error(f"--key-hex {given[0]!r}: {error}") from error


def places_of(file: Path | None, sinks: list[Path] | None, pipelines: list[str] | None) -> Places:
    listed = Places() if file is None else read_places(file)
    return Places(
        [*listed.sinks, *(sinks or ())],
        [*listed.pipelines, *(pipelines or ())],
    )


def find(
    cluster: Cluster, topics: Sequence[str], selector: Selector, outputs: Sequence[str]
) -> list[TopicPlan]:
    """In these topics and, of a key, in what is derived from them: topics that pipelines write,
    snapshots of events. And in dead letters of all of these records."""
    for topic in topics:
        cluster.partitions_of(topic)
    roles = dict.fromkeys(topics, TOPIC)
    if selector.kind == KEY:
        roles = {**dict.fromkeys(outputs, OUTPUT), **_snapshots(cluster, topics), **roles}
    plans = []
    for name in sorted(roles, key=lambda it: (roles[it] != TOPIC, it)):
        with searching(f"reading {name}") as advance:
            plan = find_topic(
                cluster.protocol, name, selector, access=access_to(cluster), on_progress=advance
            )
        if roles[name] == TOPIC or plan.records:
            plans.append(replace(plan, role=roles[name]))
    letters = [it for it in dead_letter_topics(cluster.protocol) if it not in roles]
    for plan in list(plans):
        with searching("reading dead letters") as advance:
            plans += find_letters(
                cluster.protocol, letters, plan, selector=selector, on_progress=advance
            )
    if not any(it.records for it in plans):
        raise NothingFound(
            f"no record of {', '.join(topics)} has {selector.describe()}: nothing to remove"
        )
    return plans


def _snapshots(cluster: Cluster, topics: Sequence[str]) -> dict[str, str]:
    """Of aggregates, beside the topics of their events (`millstream.events`)."""
    names = [f"{it}-snapshots" for it in topics]
    return dict.fromkeys(known_topics(cluster.protocol, names), SNAPSHOTS)


def access_to(cluster: Cluster) -> Access:
    return Access(cluster.bootstrap_servers, cluster.settings)


def requester(cluster: Cluster) -> str:
    """Who asks: the user of the cluster, if it knows users, and of this machine."""
    name = cluster.settings.get("sasl.username")
    try:
        local = getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        local = "unknown"
    return f"{name} ({local})" if name else local


def confirm(topic: str, plans: Sequence[TopicPlan]) -> None:
    if not sys.stdin.isatty():
        raise usage_error("add --yes to remove these records without a question")
    count = sum(it.records for it in plans)
    typed = typer.prompt(f"type {topic} to remove {count:,} records for good")
    if typed != topic:
        raise CommandFailed("nothing was removed")


@contextmanager
def searching(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=error_console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Ctrl-C does not stop the brokers: say so."""
    try:
        yield
    except KeyboardInterrupt:
        warn("the brokers go on; see `millstream excise list`")
        raise


def wait(cluster: Cluster, job: Job, selector: Selector | None, timeout: float) -> Receipt:
    check_room(cluster.protocol, job)
    with searching("replicas") as advance:
        return finish(
            cluster.protocol,
            job,
            timeout_seconds=timeout,
            selector=selector,
            bootstrap_servers=cluster.bootstrap_servers,
            on_progress=advance,
            show=note,
        )


def show_plan(
    plans: Sequence[TopicPlan],
    selector: Selector,
    derived: Sequence[DerivedPlan],
    *,
    as_json: bool,
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": plan.topic,
            "role": plan.role,
            "partition": place.partition,
            "records": place.records,
            "offsets": place.offsets,
            "searched": f"{place.searched_from}-{place.searched_to - 1}",
        }
        for plan in plans
        for place in plan.places
    ]
    if as_json:
        print_json([*rows, *(asdict(it) for it in derived)])
        return
    shown = [{**row, "offsets": shortened(row["offsets"])} for row in rows]
    columns = {
        "topic": "TOPIC",
        "role": "WHAT",
        "partition": "PARTITION",
        "records": "RECORDS",
        "offsets": "OFFSETS",
        "searched": "SEARCHED",
    }
    note(f"records to remove: {selector.describe()}")
    print_rows(shown, columns, empty="nothing")
    for it in derived:
        console().print(
            f"{it.kind} {it.name} ({it.store}: {', '.join(it.tables)}): {DONE_HOW[it.how]}",
            markup=False,
        )


def shortened(text: str, length: int = 50) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def show_receipt(done: Receipt, file: Path | None, *, as_json: bool) -> None:
    if file is not None:
        file.write_bytes(done.to_json() + b"\n")
    if as_json:
        print_json(json.loads(done.to_json()))
        return
    console().print(
        f"removed {done.job.records:,} records; receipt {done.number}, sha256 {done.digest}",
        markup=False,
    )
    for it in done.derived:
        rows = ", ".join(
            f"{table} had {count:,} rows and has {it['rows_after'].get(table, 0):,}"
            for table, count in it["rows_before"].items()
        )
        console().print(f"{it['kind']} {it['name']}: {rows or 'no tables'}", markup=False)
        for table, how in it.get("selected_by", {}).items():
            if how.startswith(NOT_SEARCHED):
                warn(f"{table} of {it['kind']} {it['name']} was {how}")
    note("not reached: " + "; ".join(done.not_reached))


def row_of(excision: Excision) -> dict[str, Any]:
    job, receipt = excision.job, excision.receipt
    requested = datetime.fromtimestamp(job.requested_ms / 1000, UTC)
    return {
        "job": job.id,
        "requested": requested.isoformat(timespec="seconds"),
        "by": job.requested_by,
        "topic": job.topics[0].topic,
        "records": job.records,
        "state": excision.state,
        "receipt": None if receipt is None else receipt.number,
    }


def load_receipt(cluster: Cluster, name: str) -> Receipt:
    if name.isdigit():
        receipts = History(cluster.protocol).receipts()
        found = next((it for it in receipts if it.number == int(name)), None)
        if found is None:
            raise usage_error(f"there is no receipt {name}; see `millstream excise list`")
        return found
    try:
        return Receipt.from_json(Path(name).read_bytes())
    except OSError as error:
        raise usage_error(f"cannot read {name}: {error.strerror}") from error

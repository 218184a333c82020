"""What was derived from excised records: sinks of `millstream connect`, and pipelines.

They are named with the request, or in a file of all places that hold copies:

    # places.toml
    sinks = ["search.toml", "cache.toml"]        # relative to this file
    pipelines = ["shop.py:revenue"]

Brokers cannot reach them, so the client does what is needed, after all replicas have removed the
records. It writes down where it is: `__excisions` has a report for each place, from when it is
begun until it is done, so that another run of the command goes on.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.client.cluster import Cluster
from millstream.errors import ConfigError, MillstreamError
from millstream.excision.documents import DerivedPlan, Job, Receipt, Selector
from millstream.excision.history import History, Report

BEGUN, DONE = "begun", "done"
SINK, PIPELINE = "sink", "pipeline"

Show = Callable[[str], None]


class Places(NamedTuple):
    """Files of sinks, and pipelines as FILE.py:NAME."""

    sinks: Sequence[Path] = ()
    pipelines: Sequence[str] = ()


def read_places(file: Path) -> Places:
    """Raises `ConfigError`."""
    # Here, since the console, which is limited in memory, reads no such files.
    import tomllib

    from millstream.connect.sinks.config import refuse_unknown

    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    refuse_unknown(given, Places._fields, str(file))
    for name, value in given.items():
        if not isinstance(value, list) or not all(isinstance(it, str) for it in value):
            raise ConfigError(f'{file}: {name} must be a list: {name} = ["..."]')
    return Places(
        [file.parent / it for it in given.get("sinks", ())],
        [str(file.parent / it) for it in given.get("pipelines", ())],
    )


class Derived(NamedTuple):
    """The plans, and the topics that the pipelines write."""

    plans: tuple[DerivedPlan, ...]
    topics: tuple[str, ...]


def plan_derived(
    cluster: Cluster,
    places: Places,
    topics: Sequence[str],
    selector: Selector,
    bootstrap_servers: str,
) -> Derived:
    """Pipelines first: sinks may read what these write. Raises `ConfigError` for a place from which
    the records cannot be removed."""
    plans: list[DerivedPlan] = []
    written: list[str] = []
    if places.pipelines:
        from millstream.excision.pipelines import plan_pipeline

        for declared in places.pipelines:
            plan, outputs = plan_pipeline(cluster, declared, bootstrap_servers, topics)
            plans.append(plan)
            written += [it for it in outputs if it not in (*topics, *written)]
    for file in places.sinks:
        from millstream.excision.sinks import plan_sink

        if not file.is_file():
            raise ConfigError(f"{file}: there is no such file")
        plans.append(plan_sink(cluster, file, [*topics, *written], selector))
    return Derived(tuple(plans), tuple(written))


def excise_derived(
    cluster: Cluster,
    job: Job,
    selector: Selector | None,
    bootstrap_servers: str,
    *,
    show: Show = lambda text: None,
) -> list[Report]:
    """Remove the records from every place that has not been done, one after the other; the reports
    of all. Raises `MillstreamError` for one that cannot be done now: the job stays."""
    kept = History(cluster)
    reports: dict[int, Report] = dict(kept.derived(job)) if job.derived else {}
    for number, plan in enumerate(job.derived):
        found = reports.get(number)
        if found is not None and found["state"] == DONE:
            continue
        _refuse_elsewhere(plan, job)
        if found is None:
            before = _look(plan, job, selector, bootstrap_servers, "before")
            found = {"state": BEGUN, **before}
            kept.put_derived(job, number, found)
        show(f"{plan.kind} {plan.name}: {plan.how}")
        left = _excise(plan, job, found, selector, bootstrap_servers)
        reports[number] = {
            **found,
            **_look(plan, job, selector, bootstrap_servers, "after"),
            "state": DONE,
            "kind": plan.kind,
            "name": plan.name,
            "how": plan.how,
            "left": left,
            "completed_ms": time.time_ns() // 1_000_000,
        }
        kept.put_derived(job, number, reports[number])
    return [reports[number] for number in range(len(job.derived))]


def is_here(plan: DerivedPlan) -> bool:
    """Whether the place can be reached from this machine and directory."""
    return plan.host == platform.node() and plan.directory == str(Path.cwd())


def _refuse_elsewhere(plan: DerivedPlan, job: Job) -> None:
    if not is_here(plan):
        raise MillstreamError(
            f"{plan.kind} {plan.name} is reached from {plan.host}, in {plan.directory}: run there "
            f"`millstream excise resume {job.id}`"
        )


def _look(
    plan: DerivedPlan, job: Job, selector: Selector | None, bootstrap_servers: str, when: str
) -> Report:
    """What it has, before or after, with hashes (`digests.py`)."""
    if plan.kind == PIPELINE:
        from millstream.excision import pipelines

        return pipelines.look(plan, job, bootstrap_servers).fields(when)
    from millstream.excision import looking

    return looking.look(plan, job, selector).fields(when)


def _excise(
    plan: DerivedPlan, job: Job, begun: Report, selector: Selector | None, bootstrap_servers: str
) -> list[str]:
    if plan.kind == PIPELINE:
        from millstream.excision.pipelines import excise_pipeline

        return excise_pipeline(plan, job, begun["states"], bootstrap_servers)
    from millstream.excision.sinks import excise_sink

    return excise_sink(plan, job, selector)


def verify_derived(
    cluster: Cluster,
    job: Job,
    reports: Sequence[Report],
    selector: Selector | None,
    bootstrap_servers: str,
    receipts: Sequence[Receipt] = (),
) -> tuple[list[str], list[str]]:
    """Look again: what is wrong, and what could not be looked at from here. With all receipts,
    hashes are compared, too: a later excision has changed what it has removed rows from."""
    problems: list[str] = []
    unseen: list[str] = []
    for plan, report in zip(job.derived, reports, strict=True):
        if not is_here(plan):
            unseen.append(f"{plan.kind} {plan.name}: reached from {plan.host}, {plan.directory}")
            continue
        compares = bool(receipts) and not _changed_later(plan, report, receipts)
        try:
            found, missed = _verify(
                cluster, plan, report, job, selector, bootstrap_servers, compares
            )
        except MillstreamError as error:
            problems.append(f"{plan.kind} {plan.name} cannot be looked at: {error}")
        else:
            problems += found
            unseen += missed
    return problems, unseen


def _changed_later(plan: DerivedPlan, report: Report, receipts: Sequence[Receipt]) -> bool:
    return any(
        other.kind == plan.kind
        and other.declared == plan.declared
        and done["completed_ms"] > report["completed_ms"]
        for receipt in receipts
        for other, done in zip(receipt.job.derived, receipt.derived, strict=True)
    )


def _verify(
    cluster: Cluster,
    plan: DerivedPlan,
    report: Report,
    job: Job,
    selector: Selector | None,
    bootstrap_servers: str,
    compares: bool,
) -> tuple[list[str], list[str]]:
    if plan.kind == PIPELINE:
        from millstream.excision.pipelines import verify_pipeline

        return verify_pipeline(plan, report, job, bootstrap_servers, compare_hashes=compares), []
    from millstream.excision.looking import verify_sink

    return verify_sink(cluster, plan, report, job, selector, compare_hashes=compares)

"""`millstream demo`: kill -9 in mid-stream, without lost or duplicated records.

`demo` itself is a shop whose pipelines are killed (`millstream.cli.shop`); `demo crash` kills a
broker, and needs no Spark (`crash_run`, `crash_story`); `demo cluster` kills the brokers of a
replicated cluster (`cluster_run`, `cluster_story`).
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.failures import CommandFailed
from millstream.cli.output import console

if TYPE_CHECKING:
    from millstream.cli.shop.run import ShopRun

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.callback(invoke_without_command=True)
def demo(
    ctx: typer.Context,
    seconds: Annotated[float, typer.Option(min=2, help="How long the shop runs.")] = 10,
    rate: Annotated[
        int, typer.Option(min=1, help="Orders per second; there are 2.5 times as many views.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed for the customers.")] = 1,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the console in a browser.")
    ] = True,
) -> None:
    """Watch a shop's pipelines, or a broker, survive kill -9 without losing a record.

    Simulates a shop: page views and orders, some late, some duplicated, some malformed.
    Pipelines on Spark turn them into windowed tables and maintained views in SQLite, an
    enriched topic, alerts, and frauds, which a pattern finds. If PostgreSQL is installed, the
    products are in it, and a search index and a table follow them. Halfway through all are
    killed with kill -9 and restarted, and a second version of a pipeline is deployed, compared
    with the first, and takes over. At the end, a batch over the log computes the expected
    result, and both are compared. The console shows it all in a browser: the pipelines
    live, the kill, the recovery, and the account in a topic. Needs Java 17;
    [bold]demo crash[/bold], which only kills a broker, does not.

    [bold]Examples[/bold]

    \b
      millstream demo
      millstream demo --seconds 120 --rate 1000 --seed 7
      millstream demo crash
      millstream demo cluster
    """
    if ctx.invoked_subcommand is not None:
        return
    from millstream.pipelines.running.prerequisites import check_spark

    check_spark()
    from millstream.cli.shop.run import ShopRun
    from millstream.cli.shop.screen import show, verdict_panel
    from millstream.cli.shop.story import Story

    end_like_ctrl_c()
    with ShopRun(rate, seed) as run:
        story = Story(run, seconds, opens_browser=browser and console().is_terminal)
        show(story)
        assert story.verdict is not None
        console().print(verdict_panel(story.verdict))
        stay_for_the_console(run)
        if not story.verdict.holds:
            raise CommandFailed("the audit found differences")


def stay_for_the_console(run: ShopRun) -> None:
    """In a terminal, the broker and the console stay until somebody has seen enough."""
    if run.console is None or not (console().is_terminal and sys.stdin.isatty()):
        return
    from millstream.cli.shop.browsing import ACCOUNT

    console().print(f"the account is at {run.console.url}topics/{ACCOUNT}/messages")
    console().input("press Enter to end the demo ")


@app.command("crash")
def demo_crash(
    seconds: Annotated[float, typer.Option(min=2, help="How long to write.")] = 8,
    kills: Annotated[int, typer.Option(min=1, max=10, help="How often to kill the server.")] = 2,
    rate: Annotated[int, typer.Option(min=1, help="Records per second.")] = 5000,
) -> None:
    """Watch a broker survive kill -9 without losing a record.

    Starts a server, writes to it with an idempotent producer (acks=all) and
    follows with a consumer group; kills the server with kill -9 in mid-stream,
    restarts it, and compares the acknowledged records with the log.

    [bold]Examples[/bold]

    \b
      millstream demo crash
      millstream demo crash --seconds 20 --kills 4 --rate 20000
    """
    from millstream.cli.crash_run import CrashRun
    from millstream.cli.crash_story import Story, show, verdict_table

    end_like_ctrl_c()
    with CrashRun(rate) as run:
        story = Story(run, seconds, kills)
        show(story)
        assert story.verdict is not None
        console().print(verdict_table(story.verdict))
        if not story.verdict.holds:
            raise CommandFailed("the audit found differences")


@app.command("cluster")
def demo_cluster(
    seconds: Annotated[float, typer.Option(min=4, help="How long to write, without faults.")] = 12,
    rate: Annotated[int, typer.Option(min=1, help="Records per second.")] = 1000,
) -> None:
    """Watch three brokers survive the loss of any one of them without losing a record.

    Starts a ZooKeeper and three brokers on this machine, and writes to a topic with three
    replicas (acks=all), while a share group works on its records. A leader is killed with
    kill -9, then the controller, then a broker is frozen for longer than its session. Compares
    the acknowledged records with the log at the end. Needs Java 17, for ZooKeeper.

    [bold]Examples[/bold]

    \b
      millstream demo cluster
      millstream demo cluster --seconds 60 --rate 5000
    """
    from millstream.cli.cluster_run import ClusterRun
    from millstream.cli.cluster_story import ClusterStory, show, verdict_table

    end_like_ctrl_c()
    with ClusterRun(rate) as run:
        story = ClusterStory(run, seconds)
        show(story)
        assert story.verdict is not None
        console().print(verdict_table(story.verdict))
        if not story.verdict.holds:
            raise CommandFailed("the audit found differences")


def end_like_ctrl_c() -> None:
    """End our child processes, whatever signal ends us."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)

"""`make bench`: run the benchmarks, print the ratios, keep JSON and a plot.

python -m benchmarks                 all but the soak
python -m benchmarks produce latency only these
python -m benchmarks soak            ten minutes
python -m benchmarks spark_read --targets kafka    beside Spark's own connector, on Kafka
python -m benchmarks nexmark --targets kafka --queries q0,q5    a part of it: results are kept
python -m benchmarks rpc --markdown  also as a table for docs/benchmarks.md
python -m benchmarks --quick         small sizes: does everything still run?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks.apache_kafka import KafkaTarget
from benchmarks.measurement import Measurement
from benchmarks.raw_client import produce_request, run_windows
from benchmarks.report import markdown, save, show
from benchmarks.targets import (
    FULL,
    QUICK,
    MillstreamTarget,
    NullTarget,
    Scale,
    Target,
    create_topic,
    running,
)

DEFAULT = (
    "requests",
    "latency",
    "produce",
    "consume",
    "transactions",
    "queues",
    "connections",
    "footprint",
    "creation",
    "loop_lag",
)
EXTRA = (
    "slow_clients",
    "authentication",
    "tls",
    "cluster",
    "cold_reads",
    "archive",
    "soak",
    "conditional",
    "metrics",
    "authorization",
    "quotas",
    "bridges",
    "query",
    "console",
    "console_pages",
    "rpc",
    "workers",
    "capture",
    "stores",
    "sinks",
    "capture_topics",
    "spark_read",
    "spark_write",
    "spark_floor",
    "spark_latency",
    "spark_cores",
    "avro",
    "state",
    "analytics",
    "standing",
    "patterns",
    "nexmark",
    "nexmark_engines",
)
TARGETS: dict[str, Callable[[], Target]] = {
    "millstream": MillstreamTarget,
    "kafka": KafkaTarget,
    "null": NullTarget,
}
REPORT_WIDTH = 160
WARM_UP_SECONDS = 15.0
RESULTS = Path(__file__).parent / "results"
# Benchmarks that the null broker, which keeps no records, can take part in.
NULL_FITS = ("requests", "produce", "connections")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    scale = replace(QUICK if options.quick else FULL, queries=options.queries)
    console = Console()
    if not console.is_terminal:
        console = Console(width=REPORT_WIDTH)  # a file has no width of its own
    measurements: list[Measurement] = []
    with ExitStack() as stack:
        targets = [TARGETS[name]() for name in options.targets]
        for target in targets:
            with console.status(f"starting {target.name}"):
                stack.enter_context(running(target))
        with console.status("warming up"):
            for target in targets:
                warm_up(target, scale)
        for name in options.names or DEFAULT:
            fitting = [t for t in targets if t.name != "null" or name in NULL_FITS]
            measurements += _run(name, fitting, scale, console)
    show(measurements, console)
    if options.markdown:
        print(markdown(measurements))  # not by the console, which breaks lines
    console.print(f"kept in {save(measurements, options.results)}")


def warm_up(target: Target, scale: Scale) -> None:
    """Let a just-in-time compiler see the requests that will be measured."""
    request = produce_request(create_topic(target, partitions=1), 0, acks=1)
    seconds = scale.seconds(WARM_UP_SECONDS)
    run_windows(target.bootstrap, [request], connections=8, in_flight=20, seconds=seconds)


def _run(name: str, targets: Sequence[Target], scale: Scale, console: Console) -> list[Measurement]:
    module = import_module(f"benchmarks.bench_{name}")
    found: list[Measurement] = []
    with console.status(f"[bold]{name}[/]"):
        for measurement in module.run(targets, scale):
            found.append(measurement)
            ratio = f"{measurement.ratio:.2f}" if measurement.ratio is not None else "-"
            console.print(f"{measurement.name}: ratio {ratio} {measurement.verdict}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", choices=[[], *DEFAULT, *EXTRA], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help="the brokers that run"
    )
    parser.add_argument(
        "--alone",
        action="store_const",
        dest="targets",
        const=["millstream"],
        help="Millstream without its peers",
    )
    parser.add_argument(
        "--queries",
        type=lambda text: tuple(text.split(",")),
        default=(),
        help="of Nexmark only these, like q0,q5",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="also print a table as docs/benchmarks.md has them"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and plot go")
    return parser


if __name__ == "__main__":
    main()

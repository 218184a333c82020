"""Python runs this in every process that finds it on PYTHONPATH: drivers, workers of Spark, all."""

from tests.faults.kill_points import Kill, install

if (kill := Kill.wanted()) is not None:
    install(kill)

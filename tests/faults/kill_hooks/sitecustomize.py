"""Python runs this in every process that finds it on PYTHONPATH: drivers, workers of Spark, all."""

import sys

from tests.faults.kill_points import install, wanted_kills

# Spark puts its own copy before what is installed. That has no bytecode: a second in every process.
sys.path[:] = [it for it in sys.path if not it.endswith("pyspark.zip")]
if kills := wanted_kills():
    install(kills)

"""A directory in the import path of Spark's Python processes on one machine: `sitecustomize.py`."""

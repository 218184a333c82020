"""SQL over topics: DuckDB over the column decoder.

Topics are tables, of Millstream or of any Kafka cluster. What a query says about offsets,
partitions and times bounds what is read (pushdown.py). Needs the extra `query`; importing the
package, or its module `search`, does not.
"""

"""The archive: closed segments as Parquet files, on a local path or in a bucket."""

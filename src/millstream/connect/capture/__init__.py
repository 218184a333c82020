"""Change data capture from PostgreSQL: logical replication to records in Debezium's envelope."""

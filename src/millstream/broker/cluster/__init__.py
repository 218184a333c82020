"""The home of the metadata in ZooKeeper: session, ordered log, membership, controller."""

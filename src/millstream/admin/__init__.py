"""What the command line and the console both do with a cluster: functions over `client.Cluster`
that return dataclasses, and print nothing."""

"""What slow consumers cause, by the backlog policy of a topic: drop, hold or reject."""

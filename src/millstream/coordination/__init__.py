"""Pure state machines: events in; records, responses and timers out. No clock, disk or socket."""

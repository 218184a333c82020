"""Share groups at the partition leader: acquisition, acknowledgement, dead letters."""

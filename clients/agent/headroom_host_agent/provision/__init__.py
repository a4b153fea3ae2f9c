"""What turns reservations into something on a host (spec hosts, part B)."""

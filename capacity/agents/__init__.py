"""Slots that agents make on their hosts (spec hosts, D.1, D.12; docs/hosts.md)."""

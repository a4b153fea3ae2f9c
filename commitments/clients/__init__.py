"""Clients of the remote systems that tell which commitments there are."""

"""Writes of `hosts`: each service is one transaction."""

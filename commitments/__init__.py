"""Commitments: slot planning, lifecycle and the LIQUID API."""

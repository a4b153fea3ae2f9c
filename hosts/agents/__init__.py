"""Agents on hosts: who they are, what they sign, what they report (docs/hosts.md)."""

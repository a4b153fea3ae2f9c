"""Signatures: of an older engine, to read what it left (v1), and ours (v2)."""

"""Commands of ``placement``."""

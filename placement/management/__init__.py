"""Management of ``placement``."""

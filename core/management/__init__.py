"""Commands of every app."""

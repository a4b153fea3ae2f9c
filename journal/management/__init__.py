"""Commands of the journal."""

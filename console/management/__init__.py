"""Management of `console`."""

"""Management of `capacity`."""

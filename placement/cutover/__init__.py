"""Moving a running cloud from another Placement into our tables, and back (docs/gateway.md)."""

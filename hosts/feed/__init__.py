"""The live feed: what a cloud's APIs list, read again and again (docs/feed.md)."""

"""Region files: reading, writing and generating them (spec region-file)."""

"""Pages of what the cloud has, and columns and filters about it."""

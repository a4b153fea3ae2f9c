"""The page of a VM."""

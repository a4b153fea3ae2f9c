"""A filter and a weigher of Nova's scheduler that ask Headroom for hosts and their order."""

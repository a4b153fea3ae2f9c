"""Whether everything that keeps Headroom true is at work: one page."""

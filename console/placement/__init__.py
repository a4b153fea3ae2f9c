"""Pages of the Placement API's rows, and the candidate explorer."""

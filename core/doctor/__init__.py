"""What is wrong with an installation and what to do: one list of checks for all who ask."""

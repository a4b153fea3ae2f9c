"""The agent as a process: what ``run`` puts together (spec hosts, D.10)."""

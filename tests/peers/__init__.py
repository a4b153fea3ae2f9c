"""Real OpenStack services that tests talk to, each in an environment of its own."""

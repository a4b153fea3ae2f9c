"""Pure algorithms of `commitments`: standard library and NumPy only."""

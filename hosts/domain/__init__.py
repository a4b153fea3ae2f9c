"""Pure algorithms of `hosts`: standard library and NumPy only."""

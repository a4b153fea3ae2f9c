"""Pure algorithms of `capacity`: standard library and NumPy only."""

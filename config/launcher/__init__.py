"""What ``./run`` does: environment, services and processes. Standard library only.

Nothing here may import Django or any installed package: it runs before they are installed.
"""

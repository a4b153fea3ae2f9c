"""Pages of the mirror into Kubernetes."""

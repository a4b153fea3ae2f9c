"""Speaking to Kubernetes: nothing above this folder knows its addresses or its client."""

"""What every app uses and what knows nothing of the domain; no models."""

"""Reading other Placement services: through their API, or from their database."""

"""Deep graph attention networks."""

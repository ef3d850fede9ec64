"""The papers' experiments: what is run, and the numbers that were published."""

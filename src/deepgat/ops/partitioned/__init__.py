"""The operators on one part of a graph that is divided among processes."""

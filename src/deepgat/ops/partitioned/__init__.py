"""The operators on one part of a graph that is partitioned among processes."""

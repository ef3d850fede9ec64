"""Named graphs: where their files are, how they are read, and a cache of what was read."""

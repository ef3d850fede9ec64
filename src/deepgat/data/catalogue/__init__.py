"""The catalogue of named graphs: their files, readers and cache."""

"""Settings that are shipped: one small TOML file each. See :mod:`deepgat.training.config_file`."""

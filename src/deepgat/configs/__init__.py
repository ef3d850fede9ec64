"""Settings that are shipped: one small TOML file each. See :mod:`deepgat.config`."""

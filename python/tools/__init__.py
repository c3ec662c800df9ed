"""Tools for working on the package; not installed."""

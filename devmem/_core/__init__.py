"""Generic machinery, written once for every backend."""

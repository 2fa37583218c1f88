"""What numba.roc had below its verbs, as far as programs reach into it."""

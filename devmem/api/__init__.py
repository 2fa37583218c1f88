"""The verbs that users call; each makes one call into `devmem._core`."""

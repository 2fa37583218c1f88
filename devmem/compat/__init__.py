"""Drop-in replacements for other libraries' namespaces: `numba_cuda`, `numba_roc`. Not imported by `devmem`."""

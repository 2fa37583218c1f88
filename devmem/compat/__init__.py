"""Drop-in namespaces for code that was written against other libraries: `numba_cuda`, `numba_roc`. Not imported by `devmem`."""

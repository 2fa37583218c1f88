"""Kernels: the names that they use, and their launches. Compilers are plugins (see `compilers`)."""

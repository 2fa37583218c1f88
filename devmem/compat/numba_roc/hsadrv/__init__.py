"""numba.roc's ``hsadrv`` modules, for code that imports from them."""

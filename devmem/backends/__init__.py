"""The backends that come with devmem; each knows `devmem.spi` and its own driver, and nothing of the others."""

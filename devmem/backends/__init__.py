"""The backends that come with devmem. Each folder stands alone: it knows `devmem.spi` and its own driver, nothing else."""

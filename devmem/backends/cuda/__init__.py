"""NVIDIA GPUs, through `cuda.bindings.driver`."""

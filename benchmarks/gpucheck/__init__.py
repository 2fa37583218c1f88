"""The parts of `gpu_report.py`: the device, the processes, the tests in them, and the report."""

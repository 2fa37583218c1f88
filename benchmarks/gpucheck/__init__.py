"""What `gpu_report.py` is made of: the device, the processes, the tests in them, and the report."""

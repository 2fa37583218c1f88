"""The parts of `bandwidth.py`: libraries, cases, timing and tables."""

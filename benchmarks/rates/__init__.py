"""What `bandwidth.py` is made of: who moves arrays, what is timed, how, and what is made of it."""

"""The first import of Python in a process of ``devmem simulate``: this folder is at the front of PYTHONPATH."""

import importlib
import os

redirect = importlib.import_module("devmem_redirect")  # beside this file
redirect.install()
redirect.run_next("sitecustomize", os.path.dirname(__file__))

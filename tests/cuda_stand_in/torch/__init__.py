"""Becomes the real torch, with made-up GPUs on top (see stand_in.py). For PYTHONPATH: this folder's parent."""

import importlib
import os
import sys

_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_path = sys.path[:]
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
del sys.modules["torch"]
importlib.import_module("torch")  # whoever imports this gets what stands in sys.modules afterwards
sys.path[:] = [_here, *sys.path]
importlib.import_module("stand_in").install()
sys.path[:] = _path

"""Collective benchmark, the part that runs on the hosts: the worker (one process per rank) and its launcher.

Standard library only, plus torch in the worker, which is the torch of the job's own Python.
"""

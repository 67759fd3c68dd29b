"""The agent: runs on the hosts, standard library only (Python >= 3.8), reads and never changes anything.

This package is zipped and sent over the stream; it imports nothing of the other rooms.
"""

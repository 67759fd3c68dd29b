"""A stale trainer: listens on a port on all addresses, and never answers. ``listener.py PORT``."""

import socket
import sys
import time

server = socket.create_server(("", int(sys.argv[1])))
while True:
    time.sleep(3600)

"""Passes its input on, one byte every ``1 / RATE`` seconds: ``drip.py RATE``. Ends when nobody reads any more."""

import os
import sys
import time

pause = 1 / float(sys.argv[1])
try:
    while byte := os.read(0, 1):
        os.write(1, byte)
        time.sleep(pause)
except BrokenPipeError:
    pass

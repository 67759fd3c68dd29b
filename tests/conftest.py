"""For all tests: Ctrl-C works in what they start, also where the test run itself was started in the background."""

import signal

# A shell that starts a job in the background ignores SIGINT for it, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""For all tests: Ctrl-C works in what they start, and generated examples are the same in every run."""

import signal

import hypothesis

# A shell that starts a job in the background ignores SIGINT for it, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A gate must fail neither by lot nor by the clock; `make search` draws anew.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", derandomize=False, deadline=None)
hypothesis.settings.load_profile("same")

"""GPU machines that are not there, for tests: see :mod:`machines`."""

"""Rules: pure functions from facts to findings. No I/O, clock or randomness here.

One module per subject. A module is found by being in this package; a rule is found by its decorator. There is no
registry to edit.
"""

"""Real failures of distributed jobs, provoked on CPU with torchrun and backend gloo, and what ``explain`` says of them.

    python -m tests.incidents                      # all that this machine permits
    python -m tests.incidents straggler sigterm    # these
    python -m tests.incidents --keep DIR           # keep what they printed
    python -m tests.incidents --record             # rewrite tests/cases/explain/incident-*.md

`worker.py` is the training script, `catalogue.py` says how each incident is started and which cause is right,
`launch.py` runs it and leaves no process behind, `run.py` is the driver.
"""

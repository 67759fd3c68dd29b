"""From log files to the cause: readers turn lines into events, signatures say what an event proves, ranking decides.

:func:`nccl_doctor.explain.api.analyse` is the whole of it as a pure function; ``nccl-doctor explain`` is a thin shell.
"""

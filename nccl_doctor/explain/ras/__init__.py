"""NCCL RAS reports (``ncclras``, NCCL 2.24 and newer): read text and JSON, and say what one or several snapshots prove.

:func:`read` gives one typed :class:`Report` per snapshot in a file; :func:`conclude` takes the snapshots of one job in
the order they were taken. Formats: the RAS chapter of NCCL's guide, and src/ras/client_support.cc at tag v2.30.
"""

from nccl_doctor.explain.ras.conclude import Kind, conclude
from nccl_doctor.explain.ras.report import MAX_BYTES, Report, read

__all__ = ["MAX_BYTES", "Kind", "Report", "conclude", "read"]

"""The HTML report: one self-contained file, safe whatever the hosts said, readable at 1,000 hosts."""

from nccl_doctor.report.html.page import render

__all__ = ["render"]

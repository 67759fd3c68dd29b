"""Host lists as people write them; see :mod:`nccl_doctor.facts.fold`."""

from nccl_doctor.facts.fold import fold

__all__ = ["fold"]

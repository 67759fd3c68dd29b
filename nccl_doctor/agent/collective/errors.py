"""What an error of a collective means: no memory, no such operation, or a failure."""

import re
from typing import List, Optional


class PlannedError(Exception):
    """A failure with a known kind: ``torch-missing``, ``backend-missing``, ``store``, ``world`` ...

    ``missing`` are the ranks that never came, where that is the failure.
    """

    def __init__(self, kind: str, text: str, missing: Optional[List[int]] = None) -> None:
        super().__init__(text)
        self.kind, self.missing = kind, missing


def is_lack_of_memory(error: Exception) -> bool:
    """Whether this is torch's, NCCL's or Python's word for no memory."""
    text = str(error)
    if "ibv_" in text:
        return False  # "Call to ibv_create_cq failed with error Cannot allocate memory": the limit on locked memory
    words = ("out of memory", "can't allocate memory", "bad_alloc", "Cannot allocate memory")
    return isinstance(error, MemoryError) or any(word in text for word in words)


def words_of_lack(error: Exception, when: str = "") -> str:
    """``out of memory while it ran: ...`` with the first line of what the allocator said."""
    lines = str(error).splitlines() or [""]
    line = next((line for line in lines if "memory" in line), lines[0])  # NCCL's first line names a source file
    said = re.sub(r"^\[enforce fail[^\]]*\][^.]*\. ", "", line.strip())[:300]
    return " ".join(filter(None, ("out of memory", when))) + (": " + said if said else "")


def is_refusal(error: Exception) -> bool:
    """Whether torch or the backend says that it has no such operation, for this type of data or at all."""
    text = str(error).lower()
    if "nccl error" in text or "cuda error" in text:
        return False  # "Cuda failure 'operation not supported'" is a failure of this machine, not torch's refusal
    words = ("invalid scalar type", "not support", "unsupported", "not implemented", "invalid data type", "cannot use",
             "can't be cast", "requires nccl")  # fmt: skip
    return isinstance(error, (NotImplementedError, TypeError)) or any(word in text for word in words)

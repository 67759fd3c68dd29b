"""One variable being set somewhere: what every extractor yields and every lint rule looks at."""

from __future__ import annotations

import enum
import functools
import re

import msgspec

from nccl_doctor.env import knowledge

# Arms within each other that are told apart: a text in which nothing is ever closed costs no more than its length.
MAX_ARMS = 20


class How(enum.Enum):
    """In what way a variable is set: it decides how the text of the value is read."""

    PROCESS = "environment"  # the environment of a running process, or of a host
    EXPORT = "export"
    PREFIX = "before a command"  # NAME=value command
    OPTION = "option"  # mpirun -x, docker -e, srun --export
    PLAIN = "shell variable"  # NAME=value, not exported
    ENV_FILE = "env file"
    CONF = "nccl.conf"
    DOCKERFILE = "Dockerfile"
    YAML = "YAML"
    PYTHON = "Python"
    LOG = "NCCL log"


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """``name`` is set to ``value`` (None: computed when it runs) at ``file``:``line`` (from 1).

    ``text`` is the line as it stands. Assignments of one ``scope`` act together (a script, a container, a host).
    ``branch`` are the if/case arms around it, (block, arm): two assignments in different arms of one block never meet.
    ``written`` is the name as it stands where that is not the name itself. ``lost`` says why the value never reaches
    the job; ``not_text`` is the type the file gives a value that must be a string. ``benchmark``: the file runs
    nccl-tests and no training.
    """

    name: str
    value: str | None
    file: str = ""
    line: int | None = None
    how: How = How.EXPORT
    text: str = ""
    scope: str = ""
    branch: tuple[tuple[int, int], ...] = ()
    host: str = ""
    written: str = ""
    lost: str = ""
    not_text: str = ""
    benchmark: bool = False

    def meets(self, other: Assignment) -> bool:
        """Whether both can hold at once: same scope, and no if/case between them."""
        arms = dict(self.branch)
        return self.scope == other.scope and all(arms.get(block, arm) == arm for block, arm in other.branch)


# Prefixes of the names this tool has an opinion on, and slips of the pen in the prefix itself.
_PREFIXES = (
    *("NCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_DIST_", "TORCH_FR_", "TORCHELASTIC_", "TORCH_ELASTIC_"),
    *("TORCH_GLOO_", "PYTORCH_NCCL_", "GLOO_", "OFI_NCCL_", "FI_", "UCX_", "SHARP_", "RDMAV_"),
)
_SLIPS = ("NCLL_", "NCC_", "NCL_", "NCCLL_", "NCCCL_", "NNCL_", "CNCL_", "NCCI_", "TORCH_NCLL_", "TROCH_NCCL_", "GLO_")

# Whether a text can hold any such name at all: one search decides for most files.
INTEREST = re.compile(
    r"NC[CL]|GLO|TORCH_(?:DIST|FR_|ELASTIC|CPP|SHOW)|TORCHELASTIC|\bFI_[A-Z]|UCX|SHARP|RDMAV"
    r"|CUDA_LAUNCH_BLOCKING|DEEPSPEED_TIMEOUT|DIST_TIMEOUT"
)

# A name that only looks like a variable NCCL reads: paths and versions for building, and for finding the library.
_BUILD = re.compile(
    r"_(?:DIR|DIRS|PATH|HOME|ROOT|LIB|LIBS|LIBRARY|LIBRARIES|INCLUDE|INCLUDES|BIN|PREFIX|VERSION|VER|TAG|BRANCH|COMMIT"
    r"|URL|REPO|SRC|SOURCE|BUILD|INSTALL|PKG|PACKAGE|MAJOR|MINOR|PATCH|IMAGE|CONTAINER|SO|ARGS|FLAGS?|OPTS|OPTIONS|CMD|EXE"
    r"|SCRIPTS?|TARGET|TYPE|TESTS|TEST)$"
)


@functools.lru_cache(maxsize=8192)
def is_ours(name: str) -> bool:
    """Whether a name is one to look at: known, in a family this tool knows, or a slip of the pen of one."""
    known = knowledge.load()
    variable = known.variables.get(name)
    if variable is not None:
        # RANK, MASTER_ADDR, LOGLEVEL and the like: set in every script, by name not even NCCL's business.
        return not variable.quiet and bool(INTEREST.search(name))
    nobody = known.nobody.get(name)
    if nobody is not None:
        return not nobody.quiet
    if name.startswith(_PREFIXES):
        return not _BUILD.search(name.upper()) or any(meant in known.variables for meant in knowledge.near(name))
    return name.startswith(_SLIPS) and bool(knowledge.near(name))

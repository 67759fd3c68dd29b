"""Finding and reading the files to lint: which kind each is, limits, and a clear word on what cannot be read."""

from __future__ import annotations

import enum
import errno
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from nccl_doctor.env.assignments import INTEREST, Assignment

STANDARD_INPUT = "-"
BYTE_ORDER_MARK = "\ufeff"  # as Windows editors put it before UTF-8

# A launch script is a few KiB; what is larger than this is something else.
SIZE_LIMIT = 4 << 20
# No line of a script that a person wrote is longer.
LINE_LIMIT = 1 << 20
# So many files are read, then it is said that there were more.
FILE_LIMIT = 100_000

_SKIP_DIRECTORIES = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox", "site-packages"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".cache"}
)


class Kind(enum.Enum):
    """The formats that are understood."""

    SHELL = "shell script"
    ENV_FILE = "env file"
    CONF = "nccl.conf"
    DOCKER = "Dockerfile"
    YAML = "YAML"
    PYTHON = "Python"


_SHELLS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".fish", ".envrc")
_BATCH = (".sbatch", ".slurm", ".sub", ".job", ".pbs", ".lsf", ".qsub")
_ENDINGS = {
    **dict.fromkeys((*_SHELLS, *_BATCH), Kind.SHELL),
    **dict.fromkeys((".env", ".service"), Kind.ENV_FILE),
    **dict.fromkeys((".yaml", ".yml", ".json"), Kind.YAML),
    ".py": Kind.PYTHON,
    ".dockerfile": Kind.DOCKER,
}
_NAMES = {
    **dict.fromkeys(("Dockerfile", "Containerfile"), Kind.DOCKER),
    **dict.fromkeys((".env", ".deepspeed_env", "environment"), Kind.ENV_FILE),
    **dict.fromkeys((".bashrc", ".bash_profile", ".profile", ".zshrc", ".envrc"), Kind.SHELL),
}


# What runs nccl-tests (a comment may only speak of them), and what runs a training.
_NCCL_TESTS = re.compile(
    r"(?m)^[^#\n]*\b(?:all_reduce|all_gather|alltoall|broadcast|gather|reduce|reduce_scatter|scatter|sendrecv)_perf"
)
_TRAINS = re.compile(r"\b(?:torchrun|deepspeed|accelerate|python3?|torch\.distributed)\b")


class Problem(msgspec.Struct, frozen=True):
    """A file that could not be read or understood, and why, in one sentence."""

    file: str
    why: str


class Reading(msgspec.Struct, frozen=True):
    """What was read: assignments, the files looked at, and what could not be read or understood."""

    assignments: tuple[Assignment, ...]
    looked_at: tuple[str, ...]
    problems: tuple[Problem, ...]


class Unreadable(Exception):
    """A file that cannot be read; the message says why."""


def kind_of_name(name: str) -> Kind | None:
    """The kind a file's name tells; None where it tells nothing."""
    base = name.rsplit("/", 1)[-1]
    if base in _NAMES:
        return _NAMES[base]
    if base.endswith("nccl.conf"):
        return Kind.CONF
    if base.startswith(("Dockerfile.", "Containerfile.")):
        return Kind.DOCKER
    if base.startswith(".env."):
        return Kind.ENV_FILE
    return _ENDINGS.get(Path(base).suffix.lower())


def kind_of_text(text: str) -> Kind:
    """The kind a text looks like; a shell script if nothing else."""
    head = text[:2000].removeprefix(BYTE_ORDER_MARK)
    if head.startswith("#!"):
        return Kind.PYTHON if "python" in head.split("\n", 1)[0] else Kind.SHELL
    if re.search(r"(?m)^(?:apiVersion|services|defaults):", head):
        return Kind.YAML
    if re.search(r"(?m)^FROM \S+", head):
        return Kind.DOCKER
    lines = [line for line in head.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(re.match(r"[A-Za-z_][A-Za-z0-9_]*=", line) for line in lines):
        return Kind.ENV_FILE
    return Kind.SHELL


def read_text(path: str) -> str:
    """A file's text; ``Unreadable`` says why not (missing, no permission, a loop, too large, binary, a device)."""
    data = _piped() if path == STANDARD_INPUT else _data(path)
    if len(data) > SIZE_LIMIT:
        raise Unreadable(f"is larger than {SIZE_LIMIT >> 20} MiB: no launch script is")
    if b"\0" in data[:8192]:
        raise Unreadable("is binary (a null byte in its first 8 KiB)")
    longest = max((len(line) for line in data.split(b"\n")), default=0)
    if longest > LINE_LIMIT:
        raise Unreadable(f"has a line of {longest / 1e6:.1f} MB: no person wrote that")
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _piped() -> bytes:
    """Standard input, and one byte more than is allowed at most. Nothing is what a command that failed writes."""
    data = sys.stdin.buffer.read(SIZE_LIMIT + 1)
    if not data.strip():
        raise Unreadable("is empty")
    return data


def _data(path: str) -> bytes:
    """The content of a regular file, and one byte more than is allowed at most."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise Unreadable("is no regular file")
            return stream.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise Unreadable(_why(error)) from None


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link that leads back to itself"
    return {errno.ENOENT: "is not there", errno.EACCES: "cannot be read: permission denied"}.get(
        error.errno or 0, f"cannot be read: {error.strerror}"
    )


def extract(text: str, file: str, kind: Kind) -> list[Assignment]:
    """What a text of this kind sets; ``Unreadable`` where it is not of that kind."""
    from nccl_doctor.env.extract import conf, docker, env_file, python_source, shell, yaml_file

    readers: dict[Kind, Callable[[str, str], list[Assignment]]] = {
        Kind.SHELL: shell.read,
        Kind.ENV_FILE: env_file.read,
        Kind.CONF: conf.read,
        Kind.DOCKER: docker.read,
        Kind.YAML: yaml_file.read,
        Kind.PYTHON: python_source.read,
    }
    marked = kind is not Kind.CONF and text.startswith(BYTE_ORDER_MARK)  # NCCL takes it for a part of the first name
    try:
        found = readers[kind](text.removeprefix(BYTE_ORDER_MARK) if marked else text, file)
    except SyntaxError as error:
        place = f" at line {error.lineno}" if error.lineno else ""
        raise Unreadable(f"is no valid Python{place}: {error.msg}") from None
    except yaml_file.BadYaml as error:
        raise Unreadable(f"is no valid YAML: {error}") from None
    except RecursionError:
        raise Unreadable(f"is nested too deep for {kind.value}") from None
    if not (marked and kind is Kind.SHELL):
        return found
    # Tried with bash 5.2 and dash: "export: command not found", and the script goes on.
    lost = "to a shell the byte order mark at the start of the file is a part of the first line's first word"
    return [msgspec.structs.replace(item, lost=lost) if item.line == 1 else item for item in found]


def find(names: Iterable[str], refused: Callable[[OSError], None] | None = None) -> Iterator[tuple[str, bool]]:
    """(path, whether it was named itself) for files, directories and globs, in a fixed order, each once.

    ``refused`` is told of the directories that cannot be read.
    """
    seen: set[str] = set()
    for name in names:
        if name == STANDARD_INPUT:
            yield name, True
            continue
        paths = [name]
        if not os.path.lexists(name) and glob.has_magic(name):
            paths = sorted(glob.glob(name, recursive=True)) or [name]  # noqa: PTH207 - the user's pattern may be absolute
        for path in paths:
            inside = _walk(path, refused) if Path(path).is_dir() else iter([(path, True)])
            for found, named in inside:
                if found not in seen:
                    seen.add(found)
                    yield found, named


def _walk(top: str, refused: Callable[[OSError], None] | None) -> Iterator[tuple[str, bool]]:
    """The files of a directory whose names tell what they are, or have no ending; directory links are not followed."""
    for directory, folders, files in os.walk(top, onerror=refused):
        folders[:] = sorted(name for name in folders if name not in _SKIP_DIRECTORIES)
        for name in sorted(files):
            if kind_of_name(name) is not None or "." not in name:
                yield str(Path(directory, name)), False


def read(names: Sequence[str]) -> Reading:
    """Read every file, directory and glob named; what goes wrong with one file keeps no other from being read."""
    assignments: list[Assignment] = []
    looked_at: list[str] = []
    problems: list[Problem] = []
    found = find(names, lambda error: problems.append(Problem(str(error.filename), _why(error))))
    for number, (path, named) in enumerate(found):
        if number == FILE_LIMIT:
            problems.append(Problem(path, f"is left out with all that follows: {FILE_LIMIT} files were read"))
            break
        try:
            text = read_text(path)
            if not named and not INTEREST.search(text):
                looked_at.append(path)
                continue
            kind = kind_of_name(path) or kind_of_text(text)
            if not named and kind_of_name(path) is None and kind is Kind.SHELL and not text.startswith("#!"):
                continue  # some file without an ending that a directory happens to hold
            found_here = extract(text, path, kind)
            if found_here and _NCCL_TESTS.search(text) and not _TRAINS.search(text):
                found_here = [msgspec.structs.replace(item, benchmark=True) for item in found_here]
            assignments += found_here
            looked_at.append(path)
        except Unreadable as error:
            # In a directory full of other things only what claims to be ours is worth a word.
            if named or kind_of_name(Path(path).name) is not None:
                problems.append(Problem(path, str(error)))
    if not looked_at and not problems:
        problems.append(Problem(" ".join(names), "holds no file that looks like a script or a configuration"))
    return Reading(tuple(assignments), tuple(looked_at), tuple(problems))

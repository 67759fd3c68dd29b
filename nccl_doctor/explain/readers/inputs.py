"""From what the user names (files, directories, globs, ``-``) to log sources; nothing is followed for ever."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator

import msgspec

from nccl_doctor.explain.model import InputProblem
from nccl_doctor.explain.readers import content

MAX_FILES = 200_000
MAX_DEPTH = 32
BUNDLE = ".ndb"  # a saved run of check or preflight
# Of a directory's files: what holds no text, and sources and settings, which speak of failures that did not happen.
_SKIP = re.compile(
    r"\.(?:py|ipynb|c|cc|cpp|cuh?|h|hpp|sh|sbatch|md|rst|toml|ya?ml|pt|pth|bin|safetensors|ckpt|npy|npz|arrow|parquet|so|o|a|pyc|whl|zip|tar|tgz|png|jpe?g|mp4|model|onnx|engine|nsys-rep|qdrep|sqlite|db|tfevents.*|lock|html?|sarif|prom)$",
    re.IGNORECASE,
)
_KEPT = re.compile(r"(?:explanation|hang-\d+|left)\.(?:txt|json)")  # beside the job.json of `run --keep`
_JUNIT = re.compile(rb'<\?xml[^>]*>\s*<testsuites name="nccl-doctor"')
_NO_FILES = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


class LogFile(msgspec.Struct, frozen=True):
    """A file to be read: its path, the name to show, and the rank and host that its name says."""

    path: str
    name: str
    rank: int | None = None
    host: str = ""
    size: int = 0


def find(names: Iterable[str]) -> tuple[list[LogFile], list[InputProblem]]:
    """The files behind names, each once, in an order that depends on no other than their names; what cannot be used comes back
    as problems."""
    files: dict[tuple[int, int], LogFile] = {}
    problems: list[InputProblem] = []
    for name in names:
        matches = [name]
        if not os.path.lexists(name) and any(char in name for char in "*?["):
            matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            problems.append(InputProblem(name, "no file matches"))
        for match in matches:
            _add(match, match == name, files, problems, os.path.dirname(match) + "/")
    return _plausible(sorted(files.values(), key=lambda file: file.name)), problems


def _add(
    name: str, named: bool, files: dict[tuple[int, int], LogFile], problems: list[InputProblem], top: str = ""
) -> None:
    try:
        status = os.stat(name)
    except OSError as error:
        problems.append(InputProblem(name, content.why(error)))
        return
    if stat.S_ISDIR(status.st_mode):
        for path in sorted(_walk(name, problems)):
            _add(path, False, files, problems, name)
        return
    if not stat.S_ISREG(status.st_mode):
        kind = _NO_FILES.get(stat.S_IFMT(status.st_mode), "a device")
        if named or not stat.S_ISCHR(status.st_mode):
            problems.append(InputProblem(name, f"is {kind}, not a file; pipe its content into: nccl-doctor explain -"))
        return
    if not named and (_SKIP.search(name) or _is_ours(name)):
        return
    if len(files) >= MAX_FILES:
        if len(files) == MAX_FILES:
            problems.append(InputProblem(name, f"more than {MAX_FILES} files: the rest is left out"))
        return
    rank, host = identity(os.path.basename(name) if named else name[len(top) :])
    files.setdefault((status.st_dev, status.st_ino), LogFile(name, name, rank, host, status.st_size))


def _is_ours(name: str) -> bool:
    """Whether this is a report of preflight, a saved benchmark, or what ``run --keep`` wrote beside a job's output: what they
    quote is no job's log."""
    if _KEPT.fullmatch(os.path.basename(name)) and _is_ours(os.path.join(os.path.dirname(name), "job.json")):
        return True
    if name.endswith((".log", ".out", ".err")):
        return False  # most files are, and need not be opened to be known
    with contextlib.suppress(content.InputError, OSError), content.opened(name) as raw:
        if not name.endswith((".json", ".xml")):
            return bool(_JUNIT.match(raw.read(256)))  # the report of preflight whose file may have any name
        head = raw.read(content.HEAD)
        return head.startswith((b"<?xml", b"{\n", b"[\n")) and b"nccl-doctor" in head
    return False


def _walk(top: str, problems: list[InputProblem]) -> Iterator[str]:
    """Regular-looking entries below a directory. Links to directories are not followed, so there are no loops."""
    top = top.rstrip("/") or top
    base = top.count("/")
    for root, directories, names in os.walk(
        top, onerror=lambda error: problems.append(InputProblem(str(error.filename), content.why(error)))
    ):
        directories.sort()
        if root.count("/") - base >= MAX_DEPTH:
            problems.append(InputProblem(root, f"deeper than {MAX_DEPTH} directories: left out"))
            directories.clear()
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith("~"):
                yield f"{root}/{name}"


_FILE_RANK = (
    re.compile(r"(?:^|[/_.-])rank[_.-]?(\d{1,6})(?:[/_.-]|$)", re.IGNORECASE),
    re.compile(r"(?:^|/)(\d{1,6})/(?:stdout|stderr)(?:\.log)?$"),
    re.compile(
        r"(?:^|/)(?:stdout|stderr|output|error|log|out|err)[_.-](\d{1,6})(?:\.(?:log|txt|out|err))?$", re.IGNORECASE
    ),
    re.compile(r"(?:^|/)(\d{1,6})\.(?:log|out|err|txt)$"),
    re.compile(r"-(\d{1,5})\.(?:log|out|err)$"),
    re.compile(r"_t?(\d{1,5})\.(?:out|err)$"),
    re.compile(r"(?:nccl_trace_rank_|comm_lib_trace_rank_)(\d{1,7})$"),
)
_FILE_HOST = re.compile(
    r"(?:^|[/_.-])((?:node|host|gpu|worker|nid|ip|hgx|dgx|compute)[-_]?[a-z]{0,6}-?\d[\w-]{0,40})(?=[./_]|$)",
    re.IGNORECASE,
)


# What else a number at a name's end counts: with these words before it, it is no rank.
_NO_RANK = re.compile(
    r"(?:xid|job|jobid|slurm|pid|port|size|batch|seed|v|version|lr|step|iter|epoch|run|attempt|test)[_.-]?\d{1,6}\.\w+$",
    re.IGNORECASE,
)
_LOOSE = re.compile(r"[-_]t?(\d{1,5})\.(?:log|out|err)(?:\.(?:gz|xz|zst|bz2))?$")


def _plausible(files: list[LogFile]) -> list[LogFile]:
    """The same, without ranks that only a number at a name's end tells, where no files with other numbers stand beside it."""
    loose = [_LOOSE.search(file.name) if "rank" not in file.name.lower() else None for file in files]
    series: dict[str, set[int]] = {}
    for found in filter(None, loose):
        series.setdefault(found.string[: found.start()], set()).add(int(found.group(1)))
    alone = {stem for stem, ranks in series.items() if max(ranks) - min(ranks) >= 2 * len(ranks) or len(ranks) == 1}
    return [
        msgspec.structs.replace(file, rank=None) if found and file.name[: found.start()] in alone else file
        for file, found in zip(files, loose, strict=True)
    ]


def identity(name: str) -> tuple[int | None, str]:
    """Rank and host as a file's name says them (``rank17.err``, ``3/stderr.log``, ``job-17.log``, ``gpu03.log``)."""
    bare = re.sub(r"\.(?:gz|xz|zst|bz2)$", "", name)
    rank = None
    for pattern in _FILE_RANK:
        found = pattern.search(bare)
        if found and not (_LOOSE.search(bare) and _NO_RANK.search(bare)):
            rank = int(found.group(1))
            break
    host = _FILE_HOST.search(bare)
    return rank, host.group(1) if host else ""

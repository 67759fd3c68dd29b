"""Exceptions of the program itself: whose they are, told by who raised and who suffered."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.lines import ending, hosts_of, just_below, place, ranks_of, shortened
from nccl_doctor.explain.model import Hit, Traceback
from nccl_doctor.explain.readers import prefix

# Exceptions that say "the program, its installation or its arguments are wrong" rather than "this rank met bad data".
_SETUP = re.compile(
    r"(?:SyntaxError|IndentationError|TabError|ModuleNotFoundError|ImportError|NameError|AttributeError|TypeError|"
    r"ArgumentError|ArgumentTypeError|UsageError|ConfigAttributeError|ConfigKeyError|MissingMandatoryValue|ValidationError|"
    r"ConfigCompositionException|InstantiationException|HFValidationError|RepositoryNotFoundError|GatedRepoError|"
    r"LocalEntryNotFoundError|EntryNotFoundError|SafetensorError|YAMLError|ScannerError|ParserError|JSONDecodeError|"
    r"FileNotFoundError|NotADirectoryError|IsADirectoryError|PermissionError|UnboundLocalError|NotImplementedError|"
    r"UnsupportedOperation|VersionConflict|DistributionNotFound|PackageNotFoundError|DeepSpeedConfigError|AssertionError)$"
)
_SETUP_TEXT = re.compile(
    r"Error\(s\) in loading state_dict|size mismatch for|Missing key\(s\)|Unexpected key\(s\)|unexpected keyword argument|"
    r"not in struct|unrecognized|does not exist|No such file|not found|invalid choice|is required|must be divisible|"
    r"should be divisible|is not divisible|Unknown|Invalid|unsupported|not supported|401 Client|403 Client|404 Client|"
    r"Connection error|couldn't connect|Repo id must|offline mode|not a valid|cannot import name|no attribute|CUDA_HOME|"
    r"ninja|Error compiling|Error building|config|hyperparameter|Failed to import|must be specified|has to be specified|is not equal to|"
    r"(?:required|missing|unrecognized|unexpected|invalid|unknown|positional|keyword|command[- ]line|bad) arguments?\b|arguments?:? --|"
    r"arguments? (?:is|are|was|were|must|should|not)\b|takes (?:no|\d+|from) ",
    re.IGNORECASE,
)
# The exception types in which c10d, NCCL, Gloo and CUDA complain; where no signature knew the text, it is theirs.
_COMMUNICATION = re.compile(r"Dist(?:Backend|Network|Store)?Error$|NCCLError|Rendezvous\w+Error|AcceleratorError")


# Types under which libraries report what the system told them.
_SAYS_ANYTHING = re.compile(r"(?:^|\.)(?:RuntimeError|OSError|Exception)$")


def _own(case: Case) -> list[Traceback]:
    return [item for item in case.exceptions.ordinary if not _COMMUNICATION.search(item.type)]


def _is_library_noise(item: Traceback) -> bool:
    """Raised while the interpreter ends or in helper threads: says nothing about the cause. A pipe that closed has no message; a
    reader that meets the end of a file too early names it."""
    if item.type.endswith("EOFError"):
        return not item.message
    return item.type.endswith(("BrokenPipeError", "ConnectionResetError", "SystemExit", "StopAsyncIteration"))


_LOCAL_RANK = re.compile(r"\[default(\d{1,4})\]:")  # torchrun's prefix; which rank that is, the node's number decides


def _title(item: Traceback, alike: list[Traceback]) -> str:
    """Who raised what, and where; ``alike`` are the exceptions of its kind, itself among them."""
    ranks = ranks_of(one.hit for one in alike)
    local = {found[1] for one in alike if (found := _LOCAL_RANK.match(one.hit.text))}
    who = "the program "
    if ranks:
        who = f"rank {min(ranks)} " if len(ranks) == 1 else f"{len(ranks)} ranks "
    elif len(local) == 1:
        who = f"local rank {local.pop()} "
    where = f" at {item.where}" if item.where else ""
    told = item.message
    below = [hit for hit in item.more if hit.line > item.hit.line]
    if below and (not told.strip() or told.endswith(":")):
        told = f"{told} {prefix.parse(below[0].text).body.strip()}".strip()
    message = f": {shortened(told, 120)}" if told else ""
    return f"{who}raised {item.type}{message}{where}"


_SURE = 0.8  # from here on who raised, and when, outweighs what the message speaks of
_DOUBT = 0.45  # what is left, below a verdict, where the message speaks of what is beneath the program
_CHAIN = 60  # lines: an exception and those that it led to
_MOST = 0.75  # of a job's ranks: where so many raise the same, the few that were ended before they came to it would have, too
_OTHERS_SUFFER = (
    "watchdog-timeout",
    "peer-closed",
    "gloo-closed",
    "store-closed",
    "monitored-barrier",
    "socket-timeout",
    "ib-retry",
    "heartbeat",
    "comm-aborted",
    "remote-error",
    "connect-refused",
    "unique-id",
    "joined-partly",
    "group-joined-partly",
    "deadlock-detected",
)


_WAITED = re.compile(r"\b[Tt]im(?:ed?|ing) ?out\b.{0,80}\bwait.{0,60}\b(?:rank|barrier|peer|worker|leader)")


@diagnosis
def ordinary_exception(case: Case) -> Iterable[Candidate]:
    """An exception of the program itself that no signature knows.

    Raised by a part of the ranks while others waited or lost their peer, or by one rank between its steps, it is the
    cause of what the others report (app.rank-exception). Raised alike by all ranks, or in a single process, or before
    anything distributed has begun, it is no failure of distributed communication (unrelated).
    """
    items = [item for item in _own(case) if not _is_library_noise(item)]
    if not items:
        return
    if all(_WAITED.search(item.message) for item in items):
        ranks = ranks_of(item.hit for item in items)
        yield Candidate("app.straggler-timeout", 0.6, _title(items[0], items), _evidence(items), ranks)
        return
    items = [
        item for item in items if not _WAITED.search(item.message)
    ]  # who waited in vain is not whom they waited for
    first = _deepest_first(items)
    same = [item for item in items if _kind(item) == _kind(first)]
    ranks = ranks_of(item.hit for item in same)
    hosts = hosts_of(item.hit for item in same)
    hits = _evidence([*same, *_told_with(case, first), *(item for item in items if item not in same)])
    title = _title(first, same)
    judged = _whose_failure(case, first, ranks)
    about = topics.subject(first.message) if _SAYS_ANYTHING.search(first.type) else ""
    if about:  # what the system underneath told the program, in words that no signature knows
        yield Candidate(about, judged[0][1] + 0.02, title, hits, ranks, hosts, vague=True)
    elif _raised_by_a_backend(first):
        about = "net.master-unreachable" if _RENDEZVOUS in first.frames[-1] else "net.plugin"
        yield Candidate(about, _DOUBT + 0.01, title, hits, ranks, hosts, _OF_BACKEND, vague=True)
        judged = [(cause, min(strength, _DOUBT), why) for cause, strength, why in judged]
    elif (judged[0][0] == "unrelated" or judged[0][1] < _SURE) and not _SETUP_TEXT.search(first.message):
        about = topics.beneath(f"{first.type}: {first.message}")
        if about:  # less clear words: enough to doubt that the program is wrong
            yield Candidate(about, _DOUBT + 0.01, title, hits, ranks, hosts, vague=True)
            judged = [(cause, min(strength, _DOUBT), why) for cause, strength, why in judged]
    for cause, strength, why in judged:
        yield Candidate(cause, strength, title, hits, ranks, hosts, why)


def _whose_failure(case: Case, first: Traceback, ranks: set[int]) -> list[tuple[str, float, str]]:
    """What an exception that these ranks raised is, likeliest first: cause, strength, and a reason of its own."""
    began = any(hit.file == first.hit.file and hit.line < first.first_line for hit in case.hits("progress"))
    setup = bool(_SETUP.search(first.type) or _SETUP_TEXT.search(first.message)) and not (began and len(ranks) == 1)
    everyone = case.world > 1 and (
        len(ranks) >= case.world or (setup and len(ranks) > 1 and case.summary.ranks <= ranks)
    )
    everyone |= bool(_DENIED.search(first.message)) and _several(case, first)
    everyone |= _MOST * case.world <= len(ranks) and len(ranks) > 1 and not _complaining(case) - ranks
    if not everyone and _others_suffer(case):
        return [("app.rank-exception", 0.87, ""), *([("unrelated", 0.4, "")] if setup else [])]
    tested = case.last("busbw-average", first.hit.file)
    worked = max((hit.line for hit in case.hits("progress") if hit.file == first.hit.file), default=0)
    if tested and worked < tested.line < first.first_line and not ranks:
        other = "nccl-tests had come to its end: another program raised it"
        return [("unrelated", 0.78, other), ("app.rank-exception", 0.4, "")]
    half = case.world > 1 and len(ranks) >= max(2, (case.world + 1) // 2)
    # A signal is how the watchdog, or the launcher, ends a rank that waits for the one that raised.
    raised = [rank for rank, code in case.exits.items() if code >= 0]
    others_died_too = len(raised) > 1 and bool(ranks)
    if setup or half or everyone or case.world == 1 or not case.distributed or others_died_too:
        alike = "the same error on all ranks, or before anything distributed began"
        return [("unrelated", 0.86 if setup or everyone else 0.72, alike), ("app.rank-exception", 0.45, "")]
    return [("app.rank-exception", 0.7, ""), ("unrelated", 0.45, "")]


# What a server of models or data says to anybody who is not logged in.
_DENIED = re.compile(r"gated repo|(?:401|403) Client Error|Invalid credentials|is restricted\. You must", re.IGNORECASE)


def _several(case: Case, first: Traceback) -> bool:
    """Whether several processes raised the same."""
    return len({(one.hit.host, one.hit.pid, one.hit.rank) for one in _own(case) if _kind(one) == _kind(first)}) > 1


def _complaining(case: Case) -> set[int]:
    """The ranks that say that they waited or lost their peer; of torchrun's agents, whose store went away, no rank does."""
    return ranks_of(case.hits(*_OTHERS_SUFFER))


def _others_suffer(case: Case) -> bool:
    """Whether a rank waited or lost its peer: in a line that is not itself the exception of one ("ConnectionRefusedError")."""
    own = {place(item.hit) for item in case.exceptions.ordinary}
    return any(place(hit) not in own for hit in case.hits(*_OTHERS_SUFFER))


@diagnosis
def shapes_on_one_rank(case: Case) -> Iterable[Candidate]:
    """A computation (no collective) raised for the shape or type of a tensor on some ranks, and others waited for them.

    Where all ranks raise alike the program is wrong for all of them; on one rank it met data that the others did not.
    """
    hits = [hit for hit in case.hits("shape-dtype", "type-or-shape") if place(hit) not in case.exceptions.caught]
    ranks = ranks_of(hits)
    if hits and len(ranks) < case.world and _others_suffer(case) and not case.exceptions.ordinary:
        who = f"rank {min(ranks)}" if len(ranks) == 1 else "a rank"
        title = f"{who} raised: {ending(hits[0].text, 120)}"
        yield Candidate("app.rank-exception", 0.78, title, hits, ranks, final=True)


def _told_with(case: Case, first: Traceback) -> list[Traceback]:
    """The further exceptions of the same process just behind: a worker's own, or those that the first one led to."""
    return [
        item
        for item in case.summary.tracebacks
        if item.type
        and (item.hit.rank, item.hit.host) == (first.hit.rank, first.hit.host)
        and just_below(item.hit, first.hit, _CHAIN)
    ][:4]


_CHECKS = re.compile(r"/torch/distributed/(?:distributed_c10d|device_mesh|rendezvous|_functional_collectives)\.py:")
_RENDEZVOUS = "/torch/distributed/rendezvous.py:"  # only the store speaks there
_TENSOR_CHECK = re.compile(r"[Tt]ensor|dtype|complex|sizes? of|scatter_dim|multiple of group_size")


_TRANSFERS = re.compile(r"/(?:kv_transfer|disaggregation|nixl|mooncake)/")
_OF_BACKEND = "the code that calls the transfer raised it: the library that carries it out failed, or its peer did"


def _raised_by_a_backend(item: Traceback) -> bool:
    """Whether the call of a collective or of a KV transfer raised what no check of a program's own raises: its library failed."""
    where = item.frames[-1] if item.frames else ""
    if _CHECKS.search(where):
        return item.type == "RuntimeError" and not _TENSOR_CHECK.search(item.message)
    return item.type in ("RuntimeError", "Exception") and _TRANSFERS.search(where) is not None


@diagnosis
def refused_by_torch_distributed(case: Case) -> Iterable[Candidate]:
    """An argument check of torch.distributed itself raised: the program uses groups, meshes or tensors wrongly.

    Known by the deepest frame of the traceback, whatever the message says. ``RuntimeError`` is left out: under that type
    the backends' own failures come up through the same frames.
    """
    for item in case.summary.tracebacks:
        if not item.frames or not _CHECKS.search(item.frames[-1]) or case.exceptions.is_known(item):
            continue
        if item.type not in ("ValueError", "TypeError", "AssertionError", "KeyError", "NotImplementedError"):
            continue
        if "pickle" in item.message:  # of an object that the program wanted to send: the program's own exception
            continue
        tensor = bool(_TENSOR_CHECK.search(item.message)) and "group" not in item.message.replace("group_size", "")
        same = [other for other in case.summary.tracebacks if _kind(other) == _kind(item)]
        ranks = ranks_of(other.hit for other in same)
        title = f"torch.distributed refuses a call: {shortened(item.message, 120)}"
        proof = _evidence(same)
        yield Candidate("app.bad-tensor" if tensor else "app.pg-misuse", 0.88, title, proof, ranks, final=True)
        return


@diagnosis
def traceback_without_its_end(case: Case) -> Iterable[Candidate]:
    """A traceback whose exception line is missing: the log is cut there. Something was raised; what, it does not say.

    Behind a watchdog's time-out it is what the ranks raise whose communicator the watchdog aborted.
    """
    timed_out = case.hits("watchdog-timeout")
    cut = [
        item
        for item in case.summary.tracebacks
        if not item.type
        and not case.exceptions.is_of_launcher(item)
        and not any(hit.file == item.hit.file and hit.line < item.first_line for hit in timed_out)
    ]
    if cut and not case.exceptions.ordinary:
        title = f"a traceback is cut before its exception, in {cut[0].where or 'library code'}"
        hits = _evidence(cut)
        yield from rivals({"app.rank-exception": 0.34, "unrelated": 0.3}, title, hits, ranks_of(hits))


@diagnosis
def pipe_to_a_process_that_has_gone(case: Case) -> Iterable[Candidate]:
    """A process found the pipe to its parent or child closed: that one had failed. No network lies between them."""
    gone = case.exceptions.of_pipes
    if gone and not case.exceptions.ordinary:
        title = "a process found that another one of the same program, its parent or child, had gone: the lines of that one say why"
        strengths = {"app.rank-exception": 0.42, "app.dataloader-worker": 0.38, "unrelated": 0.36}
        yield from rivals(strengths, title, _evidence(gone))


def _kind(item: Traceback) -> tuple[str, str]:
    return item.type.rsplit(".", 1)[-1], re.sub(r"[\d'\"/][^\s]*", "#", item.message)[:60]


def _deepest_first(items: list[Traceback]) -> Traceback:
    """The earliest exception; of a chain the first link. With times from several hosts, the earliest time."""
    timed = [item for item in items if item.hit.seconds is not None]
    if timed and len(timed) == len(items):
        return min(timed, key=lambda item: (item.hit.seconds or 0.0, item.hit.line))
    return min(items, key=lambda item: (item.hit.file, item.first_line))


def _evidence(items: list[Traceback]) -> list[Hit]:
    return [hit for item in items for hit in (item.hit, *item.more)]

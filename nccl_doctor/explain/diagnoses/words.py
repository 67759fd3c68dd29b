"""What ranks say of themselves in a program's own words: busy, slower than the others, giving up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import trouble
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.lines import in_order, just_below, later, place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import bystanders
from nccl_doctor.facts.fold import ranges

_GAVE_UP = re.compile(
    r"\b(?:CRITICAL|FATAL|[Ff]atal|panic)\b|giving up|\b(?:abort|bail|exit|terminat)ing\b|\bcannot continue\b|unrecoverable|"
    r"\b(?:worker|rank|process|actor|replica) ?#?\d{1,6} (?:has |was )?(?:raised|crashed|died|failed(?! to))\b|"
    r"\bleaving early\b|\bquitting\b|^.{0,60}\bAssertion failed\b|"
    r"\b(?:thread|worker|loop|task) (?:has |was )?(?:stopped|ended|died|failed|crashed|exited)\W{1,3}\w*(?:Error|Exception)\b",
    re.IGNORECASE,
)
NEAR = 60  # lines: a traceback and what follows it


def gave_up(case: Case, ranks: set[int] | None, before: Hit | None = None) -> list[Hit]:
    """Lines (just before another) in which these ranks (None: anybody) say, in words of their own, that they end."""
    quiet = trouble.harmless_places(case)
    said = [hit for hits in case.summary.before.values() for hit in hits if place(hit) not in quiet] + trouble.lines(
        case
    )
    if before is not None:
        said = [hit for hit in said if just_below(before, hit, NEAR)]
    return [
        hit
        for hit in in_order(hit for hit in said if ranks is None or hit.rank in ranks or names_rank(hit.text, ranks))
        if _GAVE_UP.search(hit.text)
        and not _NOT_WORK.search(hit.text)
        and "Terminating" not in hit.text
        and "exiting prematurely" not in hit.text  # what NCCL says of another process
    ]


_DURATION = re.compile(r"([A-Za-z][A-Za-z_ ]{2,29}?)\W{1,3}(\d{1,6}(?:\.\d{1,6})?) ?(ms|s/it|s|sec|seconds)\b")
_SLOWER = 3.0  # times the others' median: more than steps of one kind of GPU differ by


def slower(case: Case, ranks: set[int]) -> list[Hit]:
    """Lines in which all of these ranks tell a much longer duration than the others do for the same thing, theirs first."""
    said: dict[int, list[Hit]] = defaultdict(list)
    for hit in (hit for hits in case.summary.before.values() for hit in hits):
        for rank in [hit.rank] if hit.rank is not None else ranks_named(hit.text)[:1]:
            said[rank].append(hit)
    if not all(any(_DURATION.search(hit.text) for hit in said.get(rank, ())) for rank in ranks):
        return []  # before the others', of which there may be many, are looked at
    told: dict[tuple[str, str], dict[int, tuple[float, Hit]]] = defaultdict(dict)
    for rank, hits in said.items():
        for hit in hits:
            for label, number, unit in _DURATION.findall(hit.text):
                told[label.lower(), unit][rank] = (float(number), hit)
    for by_rank in told.values():
        others = [value for rank, (value, _) in by_rank.items() if rank not in ranks]
        own = [by_rank[rank] for rank in ranks if rank in by_rank]
        if others and len(own) == len(ranks) and min(value for value, _ in own) > _SLOWER * median(others) > 0:
            return [hit for _, hit in own] + [hit for rank, (_, hit) in by_rank.items() if rank not in ranks][:2]
    return []


_BUSY = re.compile(
    r"\bwrit|\bsav(?:e|ing)|load(?!er)|tokeniz|compil|cach|build(?!er)|\bgrouping|index|evaluat|validat|preprocess|resampl|copy|extract|retry|"
    r"\bwait|sleep|\bstall|\bslow|queue|shard|\bwarm(?!n)|autotun|generat|\bmap[:( ]|filter|checkpoint|so far|flush|\bsync|"
    r"\bsort|shuffl|\bscan|\bpars|fetch|\bread(?!y)|export|convert|merg|render|comput|calculat|decod|encod|\bzip|pack(?:ing)",
    re.IGNORECASE,
)
# A rank that got no data, or has no more: whatever else these lines speak of, it is not at work.
NO_DATA = re.compile(
    r"(?:data\w*|iterator|loader|stream|source|shards?|samples?|files)\W{0,3}(?:is |was |are |were )?exhausted|"
    r"exhausted (?:the |its |all |my )*(?:data|iterator|loader|stream|shards|samples|files)|"
    r"no more (?:data|batches|samples|shards|files)|StopIteration|out of data|nothing (?:left )?to (?:do|process|read)|"
    r"\bempty (?:batch|shard|partition|split|loader|data)|"
    r"(?:\bdata\w*|iterator|loader|stream)\W{0,2} (?:has |is )?(?:finished|ended|at its end)\b(?! \w+ing\b)|"
    r"\b(?:leav(?:es|ing)|left|exit(?:s|ed|ing)|out of) (?:the |its )?(?:train\w* |main |inner )?loop\b|"
    r"(?<![KMGB], )\b(?:no|0) (?:work|files|data|samples|batches|shards|examples|rows)(?: left\b| for me\b| to \w|\W*$)",
    re.IGNORECASE,
)
# A progress bar whose label names such work ("Generating:  38%|...| 1.07it/s") is no training step.
_WORK_BAR = re.compile(rf"(?:{_BUSY.pattern})[^|]{{0,80}}\d%\|", re.IGNORECASE)
# A bar at its end, "n of n", as tqdm (100%|), rich (━) and pip draw it: its work is done.
_FULL_BAR = re.compile(r"(?:100% ?\||[━█]).{0,80}?\b(\d{1,9})/\1\b")
_STEP = re.compile(r"\bloss\b|\bit/s\b|\bs/it\b|tok(?:ens?)?/s|grad_norm|\b(?:prefill|decode) batch\b", re.IGNORECASE)
# Lines that only look like work: libraries' lines, stack frames, warnings, settings, announcements.
_NOT_WORK = re.compile(
    r"\.wait\(|\braise |(?:^|\] )[\w.]{0,80}Error(?::|$)|\breturn |\bNCCL\b|ProcessGroup|\[c10d\]|still waiting|^\s*File \"|^\s*frame #|Traceback|Warning\b|warnings\.warn|\bexport [A-Z]|"
    r"extension module|Sync stream failed|OMP_NUM_THREADS|\bmonitoredBarrier\b|\bwill be (?:saved|written|stored|logged)\b|\bstall_inspector\b|waiting for remainder of ranks|standard error output|torch/distributed/|torch\.distributed|site-packages|dist-packages|"
    # the kernel, drivers and daemons: no rank says this
    r"\bkernel:|\bNVRM\b|\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d\b|\bmlx5_|\bqdisc\b|\bsystemd\b|\bslurm(?:ctld|d|stepd)\b|\bsrun:|\bkubelet\b|\bcoredns\b|"
    r"\bSIGHUP\b|\breload(?:s|ed|ing)? .{0,30}\bconfig|\b(?:prometheus|grafana|nginx|haproxy|envoy|fluent(?:d|-?bit)|logrotate|\w+[-_]exporter)\b"
)


_TRACEBACK_BEGINS = re.compile(r"Traceback \(most recent|╭")


def still_busy(hits: Iterable[Hit]) -> list[Hit]:
    """The lines in which a rank says what long work it does, unless it was back in its training steps afterwards."""
    ordered = in_order(hits)
    busy: list[Hit] = []
    for hit in ordered:
        text = _TRACEBACK_BEGINS.split(hit.text)[0]  # a bar has no line feed: a traceback can begin on its line
        if _STEP.search(text) and not _WORK_BAR.search(text):
            busy = [item for item in busy if item.file != hit.file or item.rank != hit.rank]
        elif _FULL_BAR.search(text):  # that work is done, which some programs print as a line for each step
            label = text.partition("%")[0].rstrip("0123456789. ")
            busy = [item for item in busy if item.file != hit.file or not (label and item.text.startswith(label))]
        elif _BUSY.search(text) and not (
            _NOT_WORK.search(text) or NO_DATA.search(text) or bystanders.is_of_a_service(text)
        ):
            busy.append(hit)
    return busy


def last_words(case: Case, ranks: set[int]) -> list[Hit]:
    """What these ranks said just before the first sign of trouble, in order."""
    return [
        hit
        for hits in case.summary.before.values()
        for hit in hits
        if (hit.rank in ranks or names_rank(hit.text, ranks)) and hit.text.strip()
    ]


def still_at_work(case: Case, ranks: set[int], failed: Hit) -> list[Hit]:
    """What ranks that were waited for said of their work after the others had given up: they were alive, but late."""
    said = [case.summary.last_of_rank[rank] for rank in sorted(ranks) if rank in case.summary.last_of_rank]
    said += [hit for hit in case.tail if hit.rank in ranks or (names_rank(hit.text, ranks) and _BUSY.search(hit.text))]
    said += [hit for hit in case.tail if not ranks and _WORK_BAR.search(hit.text)]
    return [
        hit
        for hit in in_order(said)
        if later(hit, failed) and not trouble.says_failure(hit.text) and not _NOT_WORK.search(hit.text)
    ]


def names_rank(text: str, ranks: set[int]) -> bool:
    if "ank" not in text:
        return False
    return any(rank in ranks for rank in ranks_named(text))


# Looked for by the letters that few lines have; what stands before them is seen to behind them.
_RANK = re.compile(r"ank(?<=\b[Rr]ank)[ =_:]?(\d{1,6})\b")


def ranks_named(text: str) -> list[int]:
    return [int(number) for number in _RANK.findall(text)[:4]]


_MOST_LETTERS = 40


def listed_ranks(ranks: set[int]) -> str:
    """These ranks, as titles name them."""
    folded = ranges(ranks)
    listed = folded if len(folded) <= _MOST_LETTERS else f"{folded[:_MOST_LETTERS].rpartition(',')[0]} and more"
    return f"ranks {listed}" if len(ranks) > 1 else f"rank {listed}"

"""The lines of a case that sound like trouble though no signature knows them: whether they say a failure, and of what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.lines import place
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import bystanders, prefix

_T = TypeVar("_T")
# Words first, and what begins in one way in one place: the engine looks for either at once.
_NOISE = re.compile(
    r"NCCL INFO (?!.*(?:->|rror|ail|Disabled|refused|timed out|nreachable))|Traceback|closing signal|error_file|"
    r"elastic/errors|OMP_NUM_THREADS|NOERROR|no error|0 errors|without error|errors?[:=] ?0\b|"
    r"(?:rrors?|ailures?|ails?) = ?\d+\s*$|"  # a setting: "Option when facing NVSwitch failure = 0"
    r"CUDA kernel errors might|For debugging consider|Some NCCL operations have failed|taking the entire process down|"
    r"^(?:(?!.*(?:ailed|nable to|annot|denied|refused|No such|No space))\s*(?=\S)[\w ./()-]{2,60}\s*$|"
    r"\s*(?=\S)(?:# (?:HELP|TYPE) .*|\w+\{.{0,400}\} 0(?:\.0+)?|[\w ./()-]{2,60}[^:]:\s+(?:0|No|N/A|None|Disabled|"
    r"Not Active))\s*$)|"
    r"(?:^|\s)(?:File \"[^\"]+\", line \d|"
    r"(?:\w+:\.{2,60}|[a-z]+_[a-z_]+:)\d{1,2}\W*$|"  # perfquery's and sysfs' counters of an adapter, which count since its start
    r"[A-Z][A-Z0-9]*_[A-Z0-9_]{2,60}(?:: |=)\S{1,60}\s*$|"  # a variable's name
    r"(?:srun|mpirun|torchrun|python3?|pytest|accelerate launch|deepspeed|torch\.distributed\.run) (?:\S+ ){0,40}?--?[a-z]|"  # a command
    r"[$#] (?:cd|cat|grep|head|ls|perfquery|tail) )"  # what somebody asks for names what may be found
)


_FAILURE_WORDS = re.compile(
    r"Traceback \(most recent|\b(?:ERROR|FATAL|CRITICAL)\b|\bError executing\b|^Error: |NCCL WARN|[Ff]ailed\b|"
    r"\bFAILED\b|core dumped|Aborted|"
    r"terminate called|\bdied\b|terminated with (?:exit )?(?:code|signal)|exited with (?:exit )?(?:code|"
    r"status) -?[1-9]|"
    r"\b[Kk]illed\b|[Ss]egmentation fault|\bCANCELLED\b|\bTerminated\b|\b[Aa]borted\b|\bpanic\b|\bcrash(?:ed)?\b|"
    r"\b(?:vanished|disappeared|lost (?:communication|connection))\b|\b(?:hangs|hanging|hung|stuck|stalled)\b|"
    r"\bno (?:step|progress|update)s? for\b|\bstill no\b|^\^C\s*$|"
    r"\bexceeded\b|\bunreachable\b|not responding|\b[Tt]imed out\b|(?:exit|return) (?:code|status):? -?[1-9]|"
    r"\(exit -?[1-9]|"
    r"\baborting\b|TERM_[A-Z]+LIMIT|"
    r"^(?:\W?\S{1,60}\W?\s)?[\w.]{0,80}[a-z]Error: ",
    re.MULTILINE,
)
_COUNTED_NONE = re.compile(
    r"\b(?:nothing|none|no \w{3,12}) (?:has |have )?failed\b|\b0 (?:failed|failures|errors?|killed|aborted|"
    r"timed out)\b|"
    r"\b(?:failed|errors?)\b[ \w]{0,12}: ?(?:none\b|null\b|\[\])|"
    r"\b\w{0,40}(?:failed|errors?|aborted|died|killed|timed out)\w{0,40}(?:(?:[ _][A-Za-z]\w*){0,2}['\"]?\s*[:=]\s*|"
    r" )0(?:\.0+)?\b",
    re.IGNORECASE,
)


def may_say_failure(texts: Iterable[str]) -> bool:
    """Whether one of these lines may (:func:`says_failure`); asked of all at once, which is seldom so."""
    return _FAILURE_WORDS.search("\n".join(texts)) is not None


def says_failure(text: str) -> bool:
    """Whether a line says that something failed, and does not merely count that nothing did."""
    told = _FAILURE_WORDS.search(_COUNTED_NONE.sub("", text)) is not None
    return told and not bystanders.lists_settings(text) and not bystanders.is_of_a_model(text)


def sounds_bad(text: str) -> bool:
    """Whether a line with a word of trouble is more than noise, or than a system service's note."""
    return not _NOISE.search(text) and (not bystanders.is_of_a_service(text) or says_failure(text))


def _quiet(case: Case, loud: set[tuple[str, int]]) -> list[Hit]:
    """The last lines that sound like no trouble and say in plain words that something failed."""
    ends = (hit for hits in case.summary.tails.values() for hit in _failing(hits) if place(hit) not in loud)
    return [hit for hit in ends if "NCCL INFO" not in hit.text and not bystanders.is_of_a_service(hit.text)]


def _failing(hits: list[Hit]) -> list[Hit]:
    """Those of these lines that say that something failed."""
    joined = "\n".join(hit.text.replace("\n", " ") for hit in hits)  # few logs have one: asked of all at once
    lines = {joined.count("\n", 0, found.start()) for found in _FAILURE_WORDS.finditer(joined)}
    return [hits[line] for line in sorted(lines) if says_failure(hits[line].text)]


def harmless_places(case: Case) -> set[tuple[str, int]]:
    """Where lines stand that are known to be harmless."""
    return {place(hit) for harmless in case.seen(Role.HARMLESS) for hit in case.hits(harmless.name)}


@functools.lru_cache(maxsize=1)
def lines(case: Case) -> list[Hit]:
    """The lines that sound like trouble and are not known to be harmless or mere consequences."""
    quiet = harmless_places(case)
    said = [hit for hit in case.hits("error-line") if place(hit) not in quiet and not bystanders.is_typed(hit.text)]
    many = [
        one for one in case.seen(Role.HARMLESS) if case.count(one.name) > len(case.hits(one.name))
    ]  # not all are kept
    found = [hit for hit in said if sounds_bad(hit.text) and not any(one.match(hit.text) is not None for one in many)]
    return sorted(found, key=lambda hit: not prefix.is_glog_error(hit.text))  # its level says so, not only a word


_ADVICE = re.compile(r"\(run with NCCL_DEBUG=\w+ for details\)")
_NUMBER = re.compile(r"\d+")
_TOLD = frozenset(
    number
    for words in (*topics.TOPICS.values(), *topics.STATUS.values())
    for number in re.findall(r"(?<![\d{,])\d+", words)
)
_ANY = "77"  # stands for all numbers that no words ask for
_ASKED = 600  # characters of a line: its end, behind the prefixes
_SHAPES = 150  # so many different lines tell what a log is about


def vote(case: Case) -> list[tuple[str, list[Hit]]]:
    """The causes that words of trouble name, each with its lines: of most lines first, of equals in the order of the tables.

    What a line names beside its subject comes last, and so does what quiet lines tell by status words.
    """
    tables: tuple[dict[str, list[Hit]], ...] = tuple(
        {cause: [] for cause in (*topics.TOPICS, *topics.STATUS)} for _ in range(2)
    )
    effects = _effects(case)
    loud = [hit for hit in lines(case) if place(hit) not in effects]
    for hit, named_by in _asked(loud, topics.named):
        for table, causes in zip(tables, named_by, strict=True):
            for cause in causes:
                table[cause].append(hit)
    calm = case.seen(Role.HARMLESS, Role.PROGRESS, Role.END)
    for hit, causes in _asked(_quiet(case, {*effects, *map(place, loud)}), topics.statuses):
        if causes and not any(signature.match(hit.text) is not None for signature in calm):
            for cause in causes:
                if cause != "launch.killed":  # what launchers do to those that are left
                    tables[1][cause].append(hit)
    chosen, beside = (sorted(table.items(), key=lambda pair: -len(pair[1])) for table in tables)
    told = {cause for cause, hits in chosen if hits}
    return [pair for pair in (*chosen, *(pair for pair in beside if pair[0] not in told)) if pair[1]]


def _effects(case: Case) -> set[tuple[str, int]]:
    """Where the lines of symptoms stand."""
    return {place(hit) for symptom in case.seen(Role.SYMPTOM) if symptom.cause for hit in case.hits(symptom.name)}


def _asked(hits: Iterable[Hit], ask: Callable[[str], _T]) -> Iterator[tuple[Hit, _T]]:
    """The lines with what ``ask`` says of each; those that differ only in numbers that no words ask for are asked once."""
    known: dict[str, _T] = {}
    for hit in hits:
        shape = _NUMBER.sub(lambda number: number.group() if number.group() in _TOLD else _ANY, hit.text[-_ASKED:])
        if shape not in known and len(known) < _SHAPES:
            known[shape] = ask(_ADVICE.sub("", shape))
        if shape in known:
            yield hit, known[shape]


def said_beneath(case: Case, ends: Iterable[Hit]) -> bool:
    """Whether a line of trouble other than these, which tell how processes ended, is about something beneath the program.

    That somebody was killed is what launchers do to those that are left.
    """
    known = _effects(case) | set(map(place, ends))
    others = [hit for hit in lines(case) if place(hit) not in known]
    return any(cause not in ("", "launch.killed") for _, cause in _asked(others, topics.beneath))


def about(case: Case, cause: str) -> list[Hit]:
    """The lines that sound like trouble and whose words belong to this cause."""
    return [hit for hit in lines(case) if topics.words_of(cause).search(hit.text)] if cause in topics.TOPICS else []

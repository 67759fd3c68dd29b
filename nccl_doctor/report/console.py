"""The report as an engineer reads it: verdict first, then causes with their proof and fix, then what is not known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import counted, few_reasons, fold
from nccl_doctor.findings.model import DENIED, EnvAdvice, Evidence, Finding, Fix, Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import confidence_word, print_again, print_hanging, print_labelled
from nccl_doctor.rules.gate import BAD, SUSPECT, UNKNOWN, Gate
from nccl_doctor.rules.judge import Report, StageResult

EVIDENCE_SHOWN = 4
TITLES_SHOWN = 3
FIXES_SHOWN = 4
GAPS_SHOWN = 20
_STYLE = {Severity.FAIL: "bold red", Severity.WARN: "bold yellow", Severity.INFO: "bold cyan"}


def render(report: Report, console: Console, *, verbose: bool = False, saved: str = "", exit_code: int = 0) -> None:
    """Print the report. Nothing in it can drive the terminal: all remote text goes through ``visible``."""
    console.print(_verdict(report))
    body(report, console, verbose)
    _close(report, console, saved, exit_code, verbose)
    print_again(console, _verdict(report))


def render_gate(
    report: Report, gate: Gate, console: Console, *, verbose: bool = False, saved: str = "", exit_code: int = 0
) -> None:
    """Print a preflight's decision, then what it rests on."""
    decision = Text("✓ GO", style="bold green") if gate.go else Text("✗ NO-GO", style="bold red")
    decision.append(f": {gate.reason}.", "bold")
    console.print(decision)
    if gate.go:
        told = f"  run on       {visible(fold(gate.chosen))}"
        spare = f"   spare: {visible(fold(gate.spares))}" if gate.spares else ""
        console.print(Text(told, "bold").append(spare, "dim"))
    for state, style in ((BAD, "bold red"), (UNKNOWN, "bold yellow"), (SUSPECT, "yellow")):
        hosts = gate.hosts(state)
        if hosts:
            reasons = _reasons({reason for item in gate.decisions if item.state == state for reason in item.because})
            line = Text(f"{state:<13}{visible(fold(hosts))}", style)
            print_hanging(console, line.append(f"   {visible(reasons)}", "not bold dim"), 2, 13)
    body(report, console, verbose)
    _close(report, console, saved, exit_code, verbose)
    print_again(console, decision)


def _reasons(because: set[str]) -> str:
    """Why hosts are not good, briefly: what is missing for one reason is told together."""
    whats: dict[str, list[str]] = {}
    for reason in sorted(because):
        what, _, why = reason.partition(": ")
        whats.setdefault(why, []).append(what)
    told = [*whats.pop("", ()), *(f"{', '.join(each)}: {why}" for why, each in whats.items())]
    return few_reasons(told, 4)


def body(report: Report, console: Console, verbose: bool) -> None:
    """Print the causes with their proof and what to do."""
    causes = [item for item in report.causes if verbose or item.severity is not Severity.INFO]
    entries(causes, console, verbose, report.findings)
    console.print()


def entries(causes: Sequence[Finding], console: Console, verbose: bool, findings: Sequence[Finding] = ()) -> None:
    """Print causes, each with its proof, what to do, and which of all ``findings`` it explains."""
    for number, items in enumerate(alike(causes), 1):
        console.print()
        _finding(number, items, findings, console, verbose)


def alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one id, one host each, are shown as one entry: sixteen hosts with the same fault are one problem."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in findings:
        own = "" if len(item.hosts) == 1 else item.title
        groups.setdefault((item.id, item.severity.value, own), []).append(item)
    return list(groups.values())


def headline(report: Report) -> tuple[str, str]:
    """The verdict in one word, and the sentence that the reader must know first."""
    hosts = counted(len(report.hosts), "host")
    if report.verdict == "faulty":
        failing = alike([item for item in report.causes if item.severity is Severity.FAIL])
        guilty = {host for group in failing for item in group for host in item.hosts}
        where = fold(host for item in failing[0] for host in item.hosts)
        problems = counted(len(failing), "problem")
        first = failing[0][0].id + (f" on {where}" if where else "")
        return "FAULTY", f"{problems} on {len(guilty)} of {hosts} would break this job. First to fix: {first}."
    if report.verdict == "incomplete" and not report.unknown:
        return "INCOMPLETE", f"nothing was checked: no stage that was asked for applies to {hosts} (see below)."
    if report.verdict == "incomplete":
        rights = all(gap.why.startswith(DENIED) for gap in report.unknown)
        why = "this user may not read everything" if rights else "not everything could be measured"
        return "INCOMPLETE", f"nothing wrong was found, but {why} (see below)."
    return "HEALTHY", f"{hosts} passed every check that was asked for."


def _verdict(report: Report) -> Text:
    word, sentence = headline(report)
    mark, style = {"FAULTY": ("✗", "red"), "INCOMPLETE": ("?", "yellow")}.get(word, ("✓", "green"))
    text = Text(f"{mark} {word}", f"bold {style}").append(f": {visible(sentence)}", "bold")
    warnings = len(alike([item for item in report.causes if item.severity is Severity.WARN]))  # as many as are listed
    if warnings and word != "FAULTY":
        text.append(f" {counted(warnings, 'warning')}.", "bold yellow")
    return text


def _finding(number: int, items: list[Finding], findings: Sequence[Finding], console: Console, verbose: bool) -> None:
    first = items[0]
    hosts = sorted({host for item in items for host in item.hosts})
    sure = f"{first.severity.value}, {confidence_word(min(item.confidence for item in items))}"
    for row in _head(number, first, visible(fold(hosts)), sure, console.width):
        console.print(row)
    titles = list(dict.fromkeys(item.title for item in items))
    for title in titles if verbose else titles[:TITLES_SHOWN]:
        print_hanging(console, Text(visible(title)), 5)
    if len(titles) > TITLES_SHOWN and not verbose:
        rest = f"... and {len(titles) - TITLES_SHOWN} more like these (--verbose shows all)"
        print_hanging(console, Text(rest, "dim"), 5)
    _print_proofs(items, console, verbose)
    _print_fixes(merged_fixes(items), console, verbose)
    for advice in first.env:
        print_hanging(console, Text("set        ", "green").append_text(_setting(advice)), 5, 11)
    if book := for_finding(first.id):
        print_hanging(console, Text(f"playbook   nccl-doctor playbook {book}", "dim"), 5, 11)
    effects = [other for other in findings if other.folded_under == first.id and other.severity is not Severity.INFO]
    if effects:
        ids = sorted(
            {f"{visible(other.id)}{' on ' + visible(fold(other.hosts)) if other.hosts else ''}" for other in effects}
        )
        print_hanging(console, Text(f"└ explains {len(effects)} more: {'; '.join(ids)}", "dim"), 5)


def _print_proofs(items: list[Finding], console: Console, verbose: bool) -> None:
    """The proof of each, before more proof of any: the reader wants to see that all of them are real."""
    in_turns = itertools.zip_longest(*(item.evidence for item in items))
    proofs = [proof for turn in in_turns for proof in turn if proof is not None]
    shown = proofs if verbose else proofs[:EVIDENCE_SHOWN]
    for text in itertools.chain.from_iterable(map(_evidence, shown)):
        print_hanging(console, text, 7)
    if len(proofs) > len(shown):
        more = counted(len(proofs) - len(shown), "more line")
        print_hanging(console, Text(f"... and {more} of proof (--verbose shows all)", "dim"), 7)


def _print_fixes(fixes: list[Fix], console: Console, verbose: bool) -> None:
    """What to do; of what is the same for each host only the commands differ, which stay whole: they are there to be copied."""
    told = ""
    for index, fix in enumerate(fixes if verbose else fixes[:FIXES_SHOWN]):
        if fix.told != told:
            told = fix.told
            label = "fix now    " if index == 0 else " " * 11
            print_hanging(console, Text(label, "green").append(visible(told)), 5, 11)
        if fix.command:
            where = f"on {visible(fix.host)}: " if fix.host else ""
            console.print(Text(" " * 16 + where).append(visible(fix.command), "bold"), soft_wrap=True)
    if len(fixes) > FIXES_SHOWN and not verbose:
        rest = f"... and {len(fixes) - FIXES_SHOWN} more (--verbose shows all)"
        print_hanging(console, Text(" " * 11 + rest, "dim"), 5, 11)


def _head(number: int, first: Finding, where: str, sure: str, width: int) -> list[Text]:
    """A finding's id, hosts and certainty: in columns where they fit, else close together, else on two lines."""
    for id_width, where_width in ((34, 24), (0, 0)):
        row = Text(f"{number:3}  ").append(f"{first.id:<{id_width}}", _STYLE[first.severity])
        row.append(f"  {where:<{where_width}}", "bold").append(f"  {sure}", "dim")
        if row.cell_len <= width:
            return [row]
    row = Text(f"{number:3}  ").append(first.id, _STYLE[first.severity]).append(f"  {sure}", "dim")
    return [row, Text(f"     {where}", "bold")] if where else [row]


def merged_fixes(items: list[Finding]) -> list[Fix]:
    """The fixes of alike findings: the same command for several hosts once, for all of them."""
    merged: dict[tuple[str, str, bool], list[str]] = {}
    for item in items:
        for fix in item.fixes:
            merged.setdefault((fix.text, fix.command, fix.risky), []).append(fix.host)
    return [
        Fix(text, command, fold(host for host in hosts if host), risky)
        for (text, command, risky), hosts in merged.items()
    ]


def _setting(advice: EnvAdvice) -> Text:
    return Text(visible(advice.shell), "bold").append(f"   {visible(setting_reason(advice))}", "not bold dim")


def setting_reason(advice: EnvAdvice) -> str:
    """Why, and which hosts need it if not all do."""
    return advice.reason + (f"; only on {fold(advice.hosts)}" if advice.hosts else "")


def _evidence(proof: Evidence) -> Iterator[Text]:
    """The quoted line, or lines (a stack), behind where it is from."""
    text = Text()
    if proof.place:
        text.append(f"{visible(proof.place)}  ", "cyan")
    if proof.rank is not None:
        text.append(f"rank {proof.rank}  ", "cyan")
    first, *more = proof.text.splitlines() or [""]
    yield text.append(visible(first))
    yield from (Text("  " + visible(line)) for line in more)


def _close(report: Report, console: Console, saved: str, exit_code: int, verbose: bool) -> None:
    for label, style, text in _closing(report, verbose):
        print_labelled(console, label, style, text)
    tail(report, console, saved, exit_code)


def tail(report: Report, console: Console, saved: str, exit_code: int | None) -> None:
    """Print the last line: how many hosts, how long, where it was saved, the exit code (None: nothing ends with it)."""
    text = f"  {counted(len(report.hosts), 'host')}, {report.seconds:.1f} s"
    text += f"   saved: {visible(saved)}" if saved else ""
    text += f"   exit {exit_code}" if exit_code is not None else ""
    console.print(Text(text, "dim"), soft_wrap=True)


def _closing(report: Report, verbose: bool) -> Iterator[tuple[str, str, Text]]:
    """Label, its style, and what there is to say: what passed, what to set, what is not known."""
    passed = [
        stage.name for stage in report.stages if stage.state in ("pass", "warn") or _on_all_reached(stage, report)
    ]
    if passed:
        yield "passed", "green", Text(_of_reached(report) + ", ".join(passed))
    skipped: dict[str, list[str]] = {}
    for stage in report.stages:
        if stage.state == "skipped":
            skipped.setdefault(stage.reason, []).append(stage.name)
    for reason, names in skipped.items():
        yield "skipped", "dim", Text(f"{_of_reached(report)}{', '.join(names)} ({visible(reason)})", "dim")
    missed = {stage for gap in report.unknown for stage in gap.stages}  # told below, as what was not checked
    if left_out := [name for name in report.left_out if name not in missed]:
        yield "left out", "yellow", Text(f"{', '.join(left_out)}: not looked at in this run")
    for setting in map(_setting, report.env) if report.env else [Text(no_setting(report))]:
        yield "environment", "green", setting
    if len(report.reached) == 1 and any(stage.name in ("connectivity", "ports") for stage in report.stages):
        yield "note", "cyan", Text("only one host was looked at: nothing between hosts was tried")
    for text in () if verbose else notes(report):
        yield "note", "cyan", text
    for text in not_checked(report, verbose):
        yield "not checked", "yellow", text


def notes(report: Report) -> Iterator[Text]:
    """What is only worth knowing, each once."""
    told: dict[str, list[Finding]] = {}
    for item in report.causes:
        if item.severity is Severity.INFO:
            told.setdefault(item.title, []).append(item)
    for title, items in told.items():
        on = {host for item in items for host in item.hosts}
        untold = 0 < len(on) < len(report.reached) and not any(host in title for host in on)
        where = f" ({fold(on)})" if len(items) > 1 or untold else ""
        yield Text(visible(title + where))


def not_checked(report: Report, verbose: bool) -> Iterator[Text]:
    """What is not known: what is missing for one reason on the same hosts (a deadline, a dead link) is one line."""
    gaps: dict[tuple[tuple[str, ...], str, str], list[str]] = {}
    for gap in report.unknown:
        gaps.setdefault((gap.hosts, gap.why, gap.next), []).append(gap.what)
    shown = list(gaps.items())[: None if verbose else GAPS_SHOWN]
    for (hosts, why, then), names in shown:
        told = f"{visible(', '.join(names))} on {visible(fold(hosts))}: {visible(why)}"
        yield Text(told + (f" (try: {visible(then)})" if then else ""))
    if len(gaps) > len(shown):
        more = f"... and {len(gaps) - len(shown)} more (--verbose shows all)"
        yield Text(more, "yellow")


def _of_reached(report: Report) -> str:
    """How many hosts it holds for, where not all were reached: nothing is said of the others."""
    some = 0 < len(report.reached) < len(report.hosts)
    return f"{len(report.reached)} of {len(report.hosts)} hosts: " if some else ""


def _on_all_reached(stage: StageResult, report: Report) -> bool:
    """Whether all that keeps a stage from passing is that some hosts were not reached."""
    return stage.state == "unknown" and bool(report.reached) and stage.passed == len(report.reached)


def no_setting(report: Report) -> str:
    """What to say without advice: "nothing needs setting" only where the interfaces, which decide it, were looked at."""
    interfaces = next((stage for stage in report.stages if stage.name == "interfaces"), None)
    broken = [item for item in report.causes if item.severity is Severity.FAIL and item.id.startswith("net.")]
    if report.reached and broken:
        return "no setting is known to help against the network's faults"
    if report.reached and interfaces and (interfaces.state != "unknown" or _on_all_reached(interfaces, report)):
        names = ", ".join(item.split(":")[0] for item in report.env_unknown)
        return _of_reached(report) + (
            f"nothing known to need setting; not decided: {names} (env recommend says why)"
            if names
            else "nothing needs setting"
        )
    why = "left out" if interfaces is None else "not measured on every host"
    why = f"the interfaces stage was {why}" if report.reached else "no host was reached"
    return f"not known: {why}"

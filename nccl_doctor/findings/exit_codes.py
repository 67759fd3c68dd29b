"""Exit codes: one published table, generated into docs/exit-codes.md."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What the process returns. Gates in CI rely on these numbers: they never change their meaning."""

    HEALTHY = 0
    INTERNAL_ERROR = 1
    USAGE = 2
    NOTHING_CHECKED = 3
    INCOMPLETE = 4
    WARNINGS = 10
    FINDINGS = 11
    UNDECIDED = 12
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One line for the table."""
        return _MEANING[self]


_MEANING = {
    ExitCode.HEALTHY: "everything that was asked for was measured, and nothing is wrong (warnings allowed)",
    ExitCode.INTERNAL_ERROR: "nccl-doctor itself failed, or could not write what it should (closed, disk full); the message says which",
    ExitCode.USAGE: "bad option, hostfile or input; nothing was done",
    ExitCode.NOTHING_CHECKED: "no host could be reached, or no input could be read, or it is empty: there is no verdict",
    ExitCode.INCOMPLETE: "nothing wrong was found, but not all that was asked for could be measured, or none of it applies",
    ExitCode.WARNINGS: "warnings only, and --strict was given",
    ExitCode.FINDINGS: "at least one finding of severity fail (explain: a cause was found; bench: less than --min-busbw, "
    "slower than --baseline, or with --fail-on slow any finding)",
    ExitCode.UNDECIDED: "explain: the log shows a failure but does not decide its cause; hang: the job stands, nobody stands out",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP; what was measured until then was printed",
}

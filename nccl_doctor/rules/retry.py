"""Whether a command that failed is worth another start: not where the same words would fail the same way."""

from __future__ import annotations

from nccl_doctor.findings import playbooks


def why_not(cause: str, title: str) -> str:
    """Why another attempt would be worth nothing, by the id and title of the first cause that was found; empty: it may be.

    What fails again, whatever the hosts, says its playbook (``repeats``). A cause that is not known is no reason.
    """
    playbook = playbooks.for_finding(cause)
    if playbook and playbooks.load(playbook).repeats:
        return f"{title} ({cause}): this is the program's own, and would fail again"
    return ""

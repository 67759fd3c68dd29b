"""Findings: the only currency, what rules, ``explain``, ``env lint`` and ``bench`` all end in; and their playbooks."""

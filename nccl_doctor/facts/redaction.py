"""Redaction for the controller: the same patterns as on the hosts, and whole lines and documents of it."""

from __future__ import annotations

from typing import Any

from nccl_doctor.agent.redaction import (
    HIDDEN,
    is_secret_name,
    redact_argv,
    redact_environment,
    redact_text,
    redact_variable,
)

__all__ = [
    "HIDDEN",
    "is_secret_name",
    "redact_argv",
    "redact_environment",
    "redact_text",
    "redact_tree",
    "redact_variable",
]


def redact_tree(value: Any) -> Any:
    """Plain JSON with every text redacted; values under a key that names a secret are hidden whole."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, list | tuple):
        return [redact_tree(item) for item in value]
    if isinstance(value, dict):
        return {
            key: HIDDEN if isinstance(item, str) and item and is_secret_name(str(key)) else redact_tree(item)
            for key, item in value.items()
        }
    return value

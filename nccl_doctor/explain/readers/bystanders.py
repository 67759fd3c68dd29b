"""Lines that tell nothing of the job, whatever words they hold: of system services, of models, lists of settings, and bars of
what is done before the work."""

from __future__ import annotations

import itertools
import re

# Daemons by their syslog tag, and the loggers of programs in Go (logfmt, klog), in which no training is written.
_SERVICE = re.compile(
    r"\b(?:systemd(?:-\w+)?|sshd|CRON|crond?|anacron|kubelet|containerd|dockerd|snapd|chronyd|ntpd|rsyslogd|dhclient|"
    r"NetworkManager|auditd|logrotate|telegraf|sudo)\[\d+\]: |"
    r"\bcaller=[\w/.-]+\.go:\d|\b[IWEF]\d{4} [\d:.]{8,15} +\d+ [\w-]+\.go:\d+\] |\blevel=(?:debug|info)\b.{0,80}\bmsg="
)


def is_of_a_service(text: str) -> bool:
    """Whether a line is a system service's: it tells nothing of how a job goes on."""
    may_be = "]: " in text or ".go:" in text or "level=" in text  # asked first: every line of progress is looked at
    return may_be and _SERVICE.search(text, 0, 200) is not None


_KERNEL = re.compile(
    r"\bkernel: |^\W*(?:kern  :\w+\s*: )?\[\s*\d{1,8}\.\d{6}\]|^\W*\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\] "
)


def is_of_the_kernel(text: str) -> bool:
    """Whether a line stands in a kernel's log (dmesg, with or without -T, or syslog): no rank wrote it."""
    return _KERNEL.search(text, 0, 200) is not None


# A prompt and its answer, as the examples of vLLM and TensorRT-LLM print them.
_OF_A_MODEL = re.compile(r"\bPrompt: ['\"].*, Generated text: ['\"]|\b(?:Input|Output) \[Text \d+(?: Beam \d+)?\]: ")


def is_of_a_model(text: str) -> bool:
    """Whether a line is what a model was asked or has written: whatever it speaks of did not happen here."""
    return ("Generated text: " in text or " [Text " in text) and _OF_A_MODEL.search(text) is not None


_TYPED = re.compile(r"[\w.-]+@[\w.-]{1,80}[ :][^\s\]$#]{0,80}\]?[$#] \S|(?:^|[\s>|\]:\"'])\$ [\w./]")


def is_typed(text: str) -> bool:
    """Whether a line is a command behind a shell's prompt: what it looks for has not been found yet."""
    return ("$ " in text or "# " in text) and _TYPED.search(text, 0, 200) is not None


_HINT = re.compile(r"NCCL (?:INFO|WARN|ATTN) .{0,80}?HINT: ")


def is_a_hint(text: str) -> bool:
    """Whether a line is NCCL's guess (2.30.7 and later): the same few follow every error of a kind, whatever it was."""
    return "HINT: " in text and _HINT.search(text) is not None


def is_passed_over(text: str) -> bool:
    """Whether a line's own writer has gone on without what failed: NVIDIA's images, which look at the driver when they
    start, and the client of the Hugging Face hub, whose cache takes no note."""
    return (
        "_CUDA_COMPAT_STATUS=" in text or "[[Forward compatibility" in text or "Will ignore error and continue" in text
    )


_SETTING = re.compile(r"(?:\b[a-z]\w{1,60}=|'[A-Za-z_][\w.-]{1,60}': ?)[\w\"'\[({<.-]")
_COMPLAINS = re.compile(r"\b(?:E(?:RROR|rror)|FATAL|CRITICAL|WARN)")
MANY_SETTINGS = 24  # more than any kernel, firewall or watchdog says of one event
_DUMP = 600  # characters: a shorter line holds no such list


def lists_settings(text: str) -> bool:
    """Whether a line is a program's list of its settings: it proves no cause, whatever words their names hold."""
    if len(text) < _DUMP or _COMPLAINS.search(text, 0, 200):
        return False
    return sum(1 for _ in itertools.islice(_SETTING.finditer(text), MANY_SETTINGS)) == MANY_SETTINGS


# A bar by its title: of huggingface_hub, datasets, transformers, TRL ("Adding EOS to train dataset"), vLLM and SGLang
_PREPARATION = re.compile(
    r"(?:^|[\]):>|])\s{0,8}(?:(?:down|up|re)?load|fetch|resolv|map\b|filter\b|(?:running )?tokeni[sz]|pre-?process|"
    r"generating \w+ (?:split|examples)|(?:convert|cast|flatten|pack|truncat|extract|appl|add|group|sav|creat|prepar)\w{0,10} .{0,60}"
    r"\b(?:dataset|data|format|texts|templates?|shards|indices|files)\b|unpack|extract|quanti[sz]|captur|compil|\w* ?warm-?up)"
    r"[^|%]{0,80}?: *\d{1,3}%(?: Completed ?)? ?\|",
    re.IGNORECASE,
)


def is_preparation(text: str) -> bool:
    """Whether a line is the bar of a download, of data or weights that are made ready: a job that hangs in its first
    collective has printed it, too."""
    return "%" in text and "loss" not in text and _PREPARATION.search(text) is not None

"""What is sent to a host to start the agent: a short command line, then the loader and the packed modules."""

from __future__ import annotations

import functools
import json
import secrets
import shlex
import zlib
from pathlib import Path

import msgspec

import nccl_doctor

_PACKAGE = Path(nccl_doctor.__file__).parent


class Launch(msgspec.Struct, frozen=True):
    """How one agent is started: the shell command, the bytes to send first, and the line that marks its answer."""

    command: str
    payload: bytes
    marker: str


def _module_name(path: Path) -> str:
    parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def pack() -> bytes:
    """The agent's modules, zlib-packed JSON ``{name: [source, is_package]}``; the same bytes for the same sources."""
    paths = [_PACKAGE / "__init__.py", *sorted((_PACKAGE / "agent").rglob("*.py"))]
    sources = {_module_name(path): [path.read_text(encoding="utf-8"), path.name == "__init__.py"] for path in paths}
    return zlib.compress(json.dumps(sources, sort_keys=True).encode("utf-8"), 9)


@functools.cache
def _loader() -> bytes:
    return (_PACKAGE / "agent" / "loader.py").read_bytes()


def shell_command(python: str = "", env_setup: str = "") -> str:
    """The command line that starts the agent, for any login shell (sh, csh, fish): ``exec sh -c '...'``.

    ``env_setup`` runs in bash where there is one (``source`` is no word of a POSIX shell), with empty input.
    """
    first = f'import sys;exec(getattr(sys.stdin,"buffer",sys.stdin).read({len(_loader())}))'
    run = f"-B -u -c {shlex.quote(first)}"
    if python:
        start = f"exec {shlex.quote(python)} {run}"
    else:
        find = "p=$(command -v python3 || command -v python) || { echo nccl-doctor-boot: no-python; exit 127; }"
        start = f'{find}; exec "$p" {run}'
    if not env_setup:
        return f"exec sh -c {shlex.quote(start)}"
    # csh takes no newline within quotes: a comment at the line's end, or a semicolon, is ended by eval instead.
    setup = (
        's=$1; shift; trap "echo nccl-doctor-boot: env-setup-failed" 0; '
        '{ eval "$s"; } </dev/null || exit 126; trap - 0; ' + start
    )
    choose = 'command -v bash >/dev/null 2>&1 && exec bash -c "$0" bash "$1"; exec sh -c "$0" sh "$1"'
    return f"exec sh -c {shlex.quote(choose)} {shlex.quote(setup)} {shlex.quote(env_setup)}"


def launch(python: str = "", env_setup: str = "") -> Launch:
    """A launch with a marker of its own."""
    nonce = secrets.token_hex(8)
    head = f"{len(pack())} {nonce}\n".encode("ascii")
    return Launch(shell_command(python, env_setup), _loader() + head + pack(), f"NCCL-DOCTOR-{nonce[::-1]}")

"""``python -m tests.gpu.hide``: standard input to standard output, without secrets and what names this very machine."""

from __future__ import annotations

import sys

from tests.gpu.recording import Hider
from tests.gpu.worlds import neutral


def main() -> None:
    """Serial numbers, UUIDs, GUIDs and hardware addresses; then secrets, addresses, paths and the host's name."""
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    hider = Hider(())
    hider.learn(text)
    sys.stdout.buffer.write(neutral(hider.hide(text)).encode())


main()

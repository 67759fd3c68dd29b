"""A headless Chromium driven over its debugging pipe: enough to open a page, press keys, and read what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--proxy-server=127.0.0.1:9", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 60.0


def program() -> str | None:
    """The browser's path, or None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of one browser. ``events`` are all that the browser told, in order."""

    def __init__(self, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._number, self._rest, self._session = 0, b"", ""
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()

        def wire() -> None:
            first, second = os.dup(their_in), os.dup(their_out)  # so that neither is 3 or 4 when 3 and 4 are made
            high = [os.dup2(first, 60), os.dup2(second, 61)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        path = program()
        assert path
        self._process = subprocess.Popen(
            [path, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=wire, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and every process it started."""
        os.close(self._out)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> Any:
        """One command, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._number
        answer = self._read_until(lambda told: told.get("id") == number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def open(self, path: Path) -> None:
        """Load a file and wait until it has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        if not any(told.get("method") == "Page.loadEventFired" for told in self.events):
            self._read_until(lambda told: told.get("method") == "Page.loadEventFired")

    def eval(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """One key, down and up."""
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def complaints(self) -> list[str]:
        """Console messages, uncaught exceptions and log entries (CSP violations among them)."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(told["params"])[:500] for told in self.events if told.get("method") in kinds]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [
            told["params"]["request"]["url"]
            for told in self.events
            if told.get("method") == "Network.requestWillBeSent"
        ]

    def _read_until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            while True:
                while b"\0" in self._rest:
                    message, self._rest = self._rest.split(b"\0", 1)
                    told: dict[str, Any] = json.loads(message)
                    if "method" in told:
                        self.events.append(told)
                    if wanted(told):
                        return told
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("the browser did not answer")
                chunk = os.read(self._in, 1 << 20)
                if not chunk:
                    raise EOFError("the browser ended")
                self._rest += chunk


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser for the duration of a block."""
    made = Browser(profile)
    try:
        yield made
    finally:
        made.close()

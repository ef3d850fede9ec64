"""A headless Chromium, spoken to over a pipe in its DevTools protocol: no driver, no package.

Messages are JSON objects that end in a zero byte, to the browser's descriptor 3 and from its 4.
"""

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60
KEY_CODES = {"Escape": 27, "Enter": 13, "End": 35, "ArrowLeft": 37, "ArrowRight": 39}
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root cannot have; the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--enable-unsafe-swiftshader",  # WebGL where there is no graphics card
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class BrowserError(RuntimeError):
    """The browser refused a command, or the page's script failed."""


class Page:
    """One tab, its network cut off; all that it complains about is kept."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=0, uploadThroughput=0)  # fmt: skip

    # ---------------------------------------------------------------- the protocol

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command; waits for its answer, and notes what happens meanwhile."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(SECONDS)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def wait_for(self, method: str) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            message = self._next(SECONDS)
            self._note(message)
            if message.get("method") == method:
                return
        raise BrowserError(f"{method} never came")

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], seconds)
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise BrowserError("the browser has gone, or says nothing any more")
            self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        return json.loads(text)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    # ---------------------------------------------------------------- what a user does

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        self.resize(width, height)
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        self.settle()

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)  # fmt: skip

    def media(self, media: str = "", **features: str) -> None:
        """The user's wishes, such as prefers_color_scheme="dark"; or media="print"."""
        wishes = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.send("Emulation.setEmulatedMedia", media=media, features=wishes)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {json.dumps(found['exceptionDetails'])[:500]}")
        return found["result"].get("value")

    def settle(self) -> None:
        """Two frames later what was to be drawn is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self.settle()

    def hover(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """The pointer over an element, at a share of its width and height."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        x, y, width, height = box
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x + across * width,
                  y=y + down * height)  # fmt: skip
        self.settle()

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=KEY_CODES.get(key, 0))  # fmt: skip
        self.settle()

    def screenshot(self, path: Path, whole: bool = False, selector: str | None = None) -> None:
        options: dict[str, Any] = {"format": "png"}
        if selector is not None:
            x, y, width, height = self.run(
                f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
                ".getBoundingClientRect();"
                "return [b.x + scrollX, b.y + scrollY, b.width, b.height]; })()"
            )
            options["clip"] = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        content = self.send(
            "Page.captureScreenshot", captureBeyondViewport=whole or selector is not None, **options
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content["data"]))


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Page]:
    """A browser with a new profile, ended with the block."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    log = (profile.parent / "browser.log").open("wb")
    connect = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", connect, program, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_browser, from_browser),
        stdout=log,
        stderr=log,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(from_us, to_us)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_us)
        os.close(to_us)
        log.close()

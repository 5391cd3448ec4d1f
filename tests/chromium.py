"""A real browser, Debian's Chromium, driven through chromedriver by WebDriver's own protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS += ["--window-size=1280,2400"]


class Browser:
    """A session of a browser."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.address = address
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        started = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.address += f"/session/{started['sessionId']}"

    def _call(self, method: str, path: str, data: Any = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = Request(
            self.address + path, body, {"Content-Type": "application/json"}, method=method
        )
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run_script(self, script: str) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def wait(self, script: str) -> None:
        """Wait until a script returns something true. Fails after ten seconds."""
        over = time.monotonic() + 10
        while not self.run_script(script):
            assert time.monotonic() < over, script
            time.sleep(0.05)

    def width(self, pixels: int) -> None:
        """How wide the window is."""
        size = {"width": pixels, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
        self._call("POST", "/goog/cdp/execute", command)

    def screenshot(self, pixels: int) -> bytes:
        """The whole page, as a PNG so many pixels wide."""
        self.width(pixels)
        height = int(self.run_script("return document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": 0, "width": pixels, "height": height, "scale": 1}
        params = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        command = {"cmd": "Page.captureScreenshot", "params": params}
        return base64.b64decode(self._call("POST", "/goog/cdp/execute", command)["data"])

    def press(self, key: str, code: int) -> None:
        """Press a key, such as Tab, as a keyboard does."""
        for kind in ("keyDown", "keyUp"):
            params = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            command = {"cmd": "Input.dispatchKeyEvent", "params": params}
            self._call("POST", "/goog/cdp/execute", command)

    def dark(self, on: bool = True) -> None:
        value = "dark" if on else "light"
        media = {"features": [{"name": "prefers-color-scheme", "value": value}]}
        command = {"cmd": "Emulation.setEmulatedMedia", "params": media}
        self._call("POST", "/goog/cdp/execute", command)

    def complaints(self) -> list[str]:
        """What the page wrote to the console, errors of its policy included."""
        return [row["message"] for row in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self, page: str) -> list[str]:
        """What a page asked for, itself included. The browser's first tab asks for more."""
        rows = self._call("POST", "/se/log", {"type": "performance"})
        events = [json.loads(row["message"])["message"] for row in rows]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
            and event["params"]["documentURL"] == page
        ]

    def close(self) -> None:
        self._call("DELETE", "")


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium; the test is skipped where none is installed."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout
        try:
            port = next(
                line.split("port ")[1].strip(".\n")
                for line in server.stdout
                if "started successfully on port" in line
            )
            options = {"binary": program, "args": [*FLAGS, f"--user-data-dir={profile}"]}
            session = Browser(f"http://127.0.0.1:{port}", options)
            try:
                yield session
            finally:
                session.close()
        finally:
            server.terminate()

"""Headless Chromium, where there is one, driven over the WebDriver protocol."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")

# Source: https://www.w3.org/TR/webdriver2/#keyboard-actions.
KEYS = {
    "Tab": "\ue004", "Enter": "\ue007", "Shift": "\ue008", "Escape": "\ue00c", "Space": " ",
    "PageUp": "\ue00e", "PageDown": "\ue00f", "End": "\ue010", "Home": "\ue011",
    "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015",
}  # fmt: skip


class Browser:
    """A browser with a profile of its own in `folder`."""

    def __init__(self, folder: str) -> None:
        assert DRIVER is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [DRIVER, f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 30
        while True:
            try:
                self.ask("GET", "/status")
                break
            except OSError:
                assert time.monotonic() < until, "chromedriver does not start"
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--window-size=1280,800", f"--user-data-dir={folder}",
        ]  # fmt: skip
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": options, "binary": CHROMIUM},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path: Path) -> None:
        self.ask("POST", f"{self.session}/url", {"url": path.as_uri()})

    def run(self, script: str, *args: object) -> Any:
        return self.ask(
            "POST", f"{self.session}/execute/sync", {"script": script, "args": list(args)}
        )

    def wait(self, script: str, *args: object) -> Any:
        """What `script` hands to its last argument, a function."""
        body = {"script": script, "args": list(args)}
        return self.ask("POST", f"{self.session}/execute/async", body)

    def log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("POST", f"{self.session}/se/log", {"type": kind})
        return found

    def cdp(self, command: str, **params: object) -> Any:
        """The answer of a command of the DevTools protocol."""
        body = {"cmd": command, "params": params}
        return self.ask("POST", f"{self.session}/goog/cdp/execute", body)

    def keys(self, *keys: str) -> None:
        """Press keys as a person would: KEYS names those without a letter, before + is Shift."""
        steps: list[dict[str, str]] = []
        for key in keys:
            shift = [KEYS["Shift"]] if key.startswith("Shift+") else []
            name = key.removeprefix("Shift+")
            held = [*shift, KEYS.get(name, name)]
            steps += [{"type": "keyDown", "value": each} for each in held]
            steps += [{"type": "keyUp", "value": each} for each in reversed(held)]
        action = {"type": "key", "id": "keyboard", "actions": steps}
        self.ask("POST", f"{self.session}/actions", {"actions": [action]})

    def width(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)

    def close(self) -> None:
        try:
            self.ask("DELETE", self.session)
        finally:
            self.process.kill()
            self.process.wait()

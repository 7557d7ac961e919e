"""A headless Chromium, spoken to through a pipe (the DevTools protocol), without any other package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. `events` has everything that the page reported: requests, console messages, errors."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.to = os.pipe()
        self.back, from_browser = os.pipe()

        def wire():  # the protocol's descriptors are 3 and 4
            os.dup2(to_browser, 103)
            os.dup2(from_browser, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-extensions",
             "--hide-scrollbars", "--remote-debugging-pipe", "--user-data-dir=" + self.folder.name, "about:blank"],
            preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.events = []
        self.last_id = 0
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.back], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            block = os.read(self.back, 1 << 20)
            if not block:
                raise RuntimeError("the browser ended")
            self.buffer += block
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        if "method" in message:
            self.events.append((message["method"], message.get("params", {})))
        return message

    def call(self, method, timeout=120, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]

    def open(self, path, timeout=120):
        self.events.clear()
        self.call("Page.navigate", url="file://" + path)
        deadline = time.monotonic() + timeout
        while not any(name == "Page.loadEventFired" for name, _ in self.events):
            self.read(deadline)

    def resize(self, width, height=800):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 500)

    def prefer(self, scheme, media=""):
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def press(self, key, code=None, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, text=text if kind == "keyDown"
                      else "", windowsVirtualKeyCode={"Tab": 9, "Enter": 13}.get(key, 0))

    def screenshot(self, path, **options):
        data = self.call("Page.captureScreenshot", format="png", **options)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def pdf(self, path):
        data = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def faults(self):
        """Errors and warnings that the page made so far."""
        out = []
        for name, values in self.events:
            if name == "Runtime.exceptionThrown":
                out.append(json.dumps(values["exceptionDetails"])[:300])
            elif name == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                out.append(json.dumps(values["args"])[:300])
            elif name == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
                out.append(values["entry"]["text"])
        return out

    def requests(self):
        return [values["request"]["url"] for name, values in self.events if name == "Network.requestWillBeSent"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()

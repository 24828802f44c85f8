"""Give recordings to the page in headless Chromium, and print its answers.

    python examples/edge/browser/drive.py build/digits 7_jackson_0.wav ...

`chromium` and `chromedriver` are Debian's packages `chromium` and
`chromium-driver`. The driver is spoken to in its own language, JSON over HTTP.
"""

import base64
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request
from urllib.request import urlopen

# The key under which WebDriver gives an element.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
SECONDS = 60
STATE = "document.getElementById('state').textContent"
PROBABILITIES = """
[...document.querySelectorAll("#bars li")].map((item) =>
  Number(item.style.getPropertyValue("--share")))
""".strip()
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu"]


class Page:
    """A page in a browser of its own."""

    def __init__(self, driver, address, arguments=()):
        self.driver = driver
        options = {"args": [*ARGUMENTS, *arguments]}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options}}
        self.session = ""
        session = self.ask("/session", {"capabilities": wanted})
        self.session = f"/session/{session['sessionId']}"
        self.ask("/url", {"url": address})

    def ask(self, path, content=None, method=None):
        data = None if content is None else json.dumps(content).encode()
        address = self.driver + self.session + path
        request = Request(address, data, method=method)
        with urlopen(request, timeout=SECONDS) as reply:
            return json.load(reply)["value"]

    def run(self, script):
        """The value of a JavaScript expression."""
        script = f"return {script}"
        return self.ask("/execute/sync", {"script": script, "args": []})

    def wait(self, condition):
        """Until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}: {self.text('state')}")
            time.sleep(0.05)

    def text(self, name):
        return self.run(f"document.getElementById('{name}').textContent")

    def element(self, name):
        found = {"using": "css selector", "value": f"#{name}"}
        return f"/element/{self.ask('/element', found)[ELEMENT]}"

    def answer(self, recording):
        """The digit that the page gives, and its probabilities."""
        self.wait("!document.getElementById('file').disabled")
        path = str(Path(recording).resolve())
        self.ask(f"{self.element('file')}/value", {"text": path})
        name = json.dumps(f"{Path(recording).name}: ")
        self.wait(f"{STATE}.startsWith({name})")
        return int(self.text("answer")), self.run(PROBABILITIES)

    def picture(self, path):
        content = self.ask("/screenshot", method="GET")
        Path(path).write_bytes(base64.b64decode(content))

    def close(self):
        self.ask("", method="DELETE")


@contextmanager
def served(folder):
    """The address of a folder, on this machine alone."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = partial(Handler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def driver():
    """The address of a Chromedriver."""
    process = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            if "started successfully on port" in line:
                port = line.rstrip(".\n").split()[-1]
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def opened(folder, path="/", arguments=()):
    """The page of a folder, once its model is there."""
    with served(folder) as address, driver() as browser:
        page = Page(browser, address + path, arguments)
        try:
            page.wait(f"{STATE} !== 'Loading the model.'")
            yield page
        finally:
            page.close()


def main(folder, *recordings):
    with opened(folder) as page:
        for recording in recordings:
            digit, probabilities = page.answer(recording)
            print(recording, digit, f"{max(probabilities):.3f}", flush=True)
        print(f"a block: {page.text('time')} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Forked processes, which start in milliseconds with Keras imported."""

import os
import signal
import time
import traceback


class Child:
    """A forked process that runs a function, which reports lines of text.

    Args:
        work: function of `report`, a function of a line of text.
    """

    def __init__(self, work):
        self._read, write = os.pipe()
        self.id = os.fork()
        if self.id:
            os.close(write)
            return
        code = 1
        try:
            work(lambda line: os.write(write, f"{line}\n".encode()))
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def end(self, within):
        """Wait, kill it after so many seconds, and return how it ended.

        Returns:
            The exit code, negative for a signal, and the lines.
        """
        deadline = time.monotonic() + within
        lines = b""
        os.set_blocking(self._read, False)
        while True:
            lines += self._pending()
            done, status = os.waitpid(self.id, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(self.id, signal.SIGKILL)
                _, status = os.waitpid(self.id, 0)
                break
            time.sleep(0.0005)
        lines += self._pending()
        os.close(self._read)
        return os.waitstatus_to_exitcode(status), lines.decode().splitlines()

    def _pending(self):
        try:
            return os.read(self._read, 2**20)
        except BlockingIOError:
            return b""

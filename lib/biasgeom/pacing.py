"""HTTP requests that keep a pace and come to an end."""

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx


class Client(httpx.Client):
    """A client each of whose requests ends within ``seconds``; httpx limits the pauses between two bytes only.

    A server that sends a byte now and then would hold its thread for ever. What is given up on ends with the client.

    Parameters
    ----------
    seconds : float
    wait : callable
        Called before each request, openai's retries included; what it waits does not count. See :func:`pace`.
    """

    def __init__(self, seconds: float, wait: Callable[[], None]) -> None:
        super().__init__(follow_redirects=True, limits=httpx.Limits(max_connections=None))
        self.seconds, self.wait = seconds, wait

    def send(self, request: httpx.Request, **how: Any) -> httpx.Response:
        came: queue.SimpleQueue[httpx.Response | BaseException] = queue.SimpleQueue()

        def fetch() -> None:
            try:
                came.put(super(Client, self).send(request, **how))
            except BaseException as error:
                came.put(error)

        self.wait()
        threading.Thread(target=fetch, daemon=True).start()
        try:
            outcome = came.get(timeout=self.seconds)
        except queue.Empty:
            raise httpx.ReadTimeout(f"no whole answer in {self.seconds:g} s", request=request) from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@functools.cache
def pace(url: str, per_minute: int) -> Callable[[], None]:
    """A function that waits until the next request is due; one clock an address, so that it holds across calls."""
    gap, free, lock = 60 / per_minute, 0.0, threading.Lock()

    def wait() -> None:
        nonlocal free
        with lock:
            now = time.monotonic()
            start = max(now, free)
            free = start + gap
        time.sleep(start - now)

    return wait

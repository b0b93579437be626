"""Prompts become replies of an OpenAI-compatible chat endpoint, each kept on disk as it comes.

The ``openai`` package sends, retries with growing pauses and honours Retry-After. Here stand the rate limit, the cache,
and what is one item's problem and what is the end of a run.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from tqdm.auto import tqdm

from biasgeom import cache, pacing

if TYPE_CHECKING:  # it takes seconds to load, and most notebooks ask no endpoint
    import openai

CONNECT_SECONDS = 5.0
CUT = "cut off at max_tokens"
"""The problem of a reply that reached the cap."""
PATIENCE = 5
"""So many items in a row without an answer, each after all its retries, mean that the endpoint is down."""
WORDS = 200
"""Characters of a server's message that are kept."""
NO_KEY = "no-key-needed"
"""Sent where no key is set: local servers ask for none, but the client sends one in any case."""


class EndpointError(RuntimeError):
    """An endpoint can't be used at all. The message says what to do; replies that came before are kept."""


class _Problem(Exception):
    """One item has no usable reply."""


class _NoAnswer(_Problem):
    """An item's retries are used up; the cause may lie with the endpoint."""


class _Cut(_Problem):
    """A reply reached the cap; ``text`` is what there was by then."""

    def __init__(self, text: str) -> None:
        super().__init__(CUT)
        self.text = text


@dataclass(frozen=True)
class Endpoint:
    """Where to ask and how hard to try.

    Attributes
    ----------
    url : str
        Base address, such as ``"http://localhost:8000/v1"``; no key in it.
    model : str
        As the endpoint names it.
    key_variable : str
        The environment variable that holds the key. It may be unset for a server that asks for none.
    per_minute : int, optional
        At most so many requests a minute, evenly spaced and retries included, from all calls of this process.
    parallel : int
        Requests in flight at once.
    retries : int
        After 408, 409, 429, 5xx, a timeout or a broken connection.
    timeout : float
        Seconds from sending a request to the last byte of its answer.

    Raises
    ------
    ValueError
        Of a URL or number that can't be meant.
    """

    url: str
    model: str
    key_variable: str = "BIASGEOM_API_KEY"
    per_minute: int | None = None
    parallel: int = 4
    retries: int = 5
    timeout: float = 60

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            # The URL is not repeated here: it may hold a password.
            raise ValueError("url must read http(s)://host[:port]/path, without user, password or query")
        if not self.model.strip():
            raise ValueError("model is empty: name the one that the endpoint is asked for")
        unlimited = self.per_minute is None
        if self.parallel < 1 or self.retries < 0 or self.timeout <= 0 or not (unlimited or self.per_minute >= 1):
            raise ValueError(f"need parallel >= 1, retries >= 0, timeout > 0 and per_minute >= 1 or None; got {self}")


@dataclass(frozen=True)
class Reply:
    """What came of one prompt: either the text or the problem, which is :data:`CUT` if ``cut`` came before the cap."""

    text: str | None
    problem: str | None
    cut: str = ""

    def __post_init__(self) -> None:
        if (self.text is None) == (self.problem is None):
            raise ValueError(f"a reply has either a text or a problem, got {self.text!r} and {self.problem!r}")


def ask(
    endpoint: Endpoint,
    prompts: Sequence[str],
    *,
    system: str | None = None,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int | None = 0,
) -> list[Reply]:
    """One reply to each prompt, in input order; equal prompts are asked once.

    Parameters
    ----------
    prompts : list of str
        Each is a user's turn of its own.
    system : str, optional
    max_tokens : int
        A reply that is cut off here is a problem; what came before is its ``cut``.
    seed : int, optional
        None leaves it out, for endpoints that refuse it. Whether it is honoured is up to the endpoint.

    Returns
    -------
    list of Reply
        An item that fails where others do not is a reply with a ``problem``.

    Raises
    ------
    EndpointError
        Unreachable, key refused, no credit, unknown model; or five items in a row without an answer.
    ValueError
        One string instead of a list.

    Notes
    -----
    Each text is kept under :mod:`biasgeom.cache` as it comes, so that an interrupted run goes on where it stopped and a
    rerun asks nothing twice. The key of the cache is the address and the whole request. Problems are not kept. The API
    key is in no message and in no file.
    """
    if isinstance(prompts, str):
        raise ValueError("expected a list of prompts, got one string")
    settings: dict[str, Any] = {"model": endpoint.model, "max_tokens": max_tokens, "temperature": float(temperature)}
    if seed is not None:
        settings["seed"] = seed
    first = [] if system is None else [{"role": "system", "content": system}]
    requests = {prompt: {**settings, "messages": [*first, {"role": "user", "content": prompt}]} for prompt in prompts}
    outcomes = {prompt: _outcome(endpoint, _not_kept, request) for prompt, request in requests.items()}
    missing = [prompt for prompt, outcome in outcomes.items() if isinstance(outcome, _Problem)]
    if missing:
        with (
            _client(endpoint) as client,
            ThreadPool(min(endpoint.parallel, len(missing))) as pool,
            tqdm(total=len(missing), desc=f"{endpoint.model}: replies", unit="reply", leave=False) as bar,
        ):
            fetch = functools.partial(_outcome, endpoint, functools.partial(_fetch, client, endpoint))
            unanswered = 0
            for prompt, outcome in zip(missing, pool.imap(fetch, map(requests.get, missing)), strict=True):
                outcomes[prompt] = outcome
                bar.update()
                unanswered = unanswered + 1 if isinstance(outcome, _NoAnswer) else 0
                if unanswered == PATIENCE:
                    raise EndpointError(
                        f"{endpoint.url}: {PATIENCE} prompts in a row had no answer, the last for this: {outcome}. "
                        "Replies so far are kept: run again when it is up."
                    )
    return [_reply(outcomes[prompt]) for prompt in prompts]


def _reply(outcome: str | _Problem) -> Reply:
    if isinstance(outcome, str):
        return Reply(outcome, None)
    return Reply(None, str(outcome), outcome.text if isinstance(outcome, _Cut) else "")


def _outcome(endpoint: Endpoint, fetch: Callable[[dict[str, Any]], str], request: dict[str, Any]) -> str | _Problem:
    """The kept text, or what ``fetch`` returns and then is kept, or the problem it raises."""
    key = cache.digest(what="chat reply", url=endpoint.url.rstrip("/"), request=request)

    def compute() -> np.ndarray:
        # JSON can hold half a surrogate pair, which no file can.
        return np.frombuffer(fetch(request).encode(errors="replace"), dtype=np.uint8)

    try:
        return cache.array(key, compute).tobytes().decode()
    except _Problem as problem:
        return problem


def _not_kept(request: dict[str, Any]) -> str:
    raise _Problem("not asked yet")


def _client(endpoint: Endpoint) -> "openai.OpenAI":
    import openai

    key = os.environ.get(endpoint.key_variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise EndpointError(f"the key in {endpoint.key_variable} has characters that no key has; set it again")
    wait = pacing.pace(endpoint.url, endpoint.per_minute) if endpoint.per_minute else lambda: None
    http = pacing.Client(endpoint.timeout, wait)
    try:
        # Without this, openai would try an address that nobody listens at again and again.
        http.head(endpoint.url, timeout=CONNECT_SECONDS, follow_redirects=False)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.InvalidURL) as error:
        raise EndpointError(
            f"{endpoint.url} can't be reached ({str(error) or type(error).__name__}). Start the server, or correct url."
        ) from error
    except httpx.TransportError:
        pass  # somebody listens; whether HEAD is answered is of no interest
    return openai.OpenAI(
        base_url=endpoint.url,
        api_key=key or NO_KEY,
        max_retries=endpoint.retries,
        timeout=httpx.Timeout(endpoint.timeout, connect=CONNECT_SECONDS),
        http_client=http,
    )


def _fetch(client: "openai.OpenAI", endpoint: Endpoint, request: dict[str, Any]) -> str:
    import openai

    def short(words: object) -> str:
        # Some servers repeat the key they were sent.
        return " ".join(str(words).split()).replace(client.api_key, "[key]")[:WORDS]

    # "from None": the originals hold the request's headers and the server's words, so perhaps the key.
    try:
        # The body itself: openai's typed answer lacks attributes where a server leaves fields out.
        return _content(client.chat.completions.with_raw_response.create(**request).http_response.text)
    except _Cut:
        raise
    except _Problem as problem:
        raise _Problem(short(problem)) from None
    except openai.APIConnectionError as error:
        raise _NoAnswer(f"no answer: {short(error.message)} {short(error.__cause__ or '')}".strip()) from None
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        words = f"status {error.status_code}: {short(body.get('message') or error.message)}"
        if advice := _advice(endpoint, error):
            raise EndpointError(f"{endpoint.url}, {words}. {advice} Replies so far are kept.") from None
        again = error.status_code in (408, 409, 429) or error.status_code >= 500
        raise (_NoAnswer if again else _Problem)(words) from None


def _advice(endpoint: Endpoint, error: "openai.APIStatusError") -> str | None:
    """What to do about an error that every other prompt would meet as well; None if another may fare better."""
    if error.status_code in (401, 403):
        state = "refused" if os.environ.get(endpoint.key_variable) else "missing"
        return f"The key is {state}: set {endpoint.key_variable} to one that may use {endpoint.model}."
    if error.status_code == 404 or error.code == "model_not_found":
        return f"The model {endpoint.model} or the address is unknown there: correct model or url."
    if error.status_code == 402 or error.code == "insufficient_quota":
        return "The account has no credit left."
    return None


def _content(body: str) -> str:
    """The text in an answer's body, or a problem in words."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):  # the second of brackets within brackets within brackets
        raise _Problem(f"the answer is no JSON: {body[:WORDS]}") from None
    match answer:
        case {"choices": [{"message": {} as message} as choice, *_]}:
            pass
        case {"error": error} if error:
            raise _Problem(f"an error in place of a reply: {error}")
        case _:
            raise _Problem("the answer holds no choices")
    content = message.get("content")
    if message.get("refusal"):
        raise _Problem(f"refusal: {message['refusal']}")
    if choice.get("finish_reason") == "content_filter":
        raise _Problem("stopped by the endpoint's content filter")
    if choice.get("finish_reason") == "length":
        raise _Cut(content if isinstance(content, str) else "")
    if not isinstance(content, str) or not content.strip():
        raise _Problem("the reply is empty")
    return content

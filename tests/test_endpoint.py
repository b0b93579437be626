"""The client against a loopback server that speaks the OpenAI chat format: what is asked, kept, retried, given up."""

import contextlib
import functools
import itertools
import json
import re
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from biasgeom import annotation, cache, endpoint
from biasgeom.endpoint import Endpoint, EndpointError, Reply, ask

KEY = "sk-secret-0123456789"
Answer = tuple[int, dict[str, str], bytes]


def chat(content: str | None, *, finish_reason: str = "stop", **message: Any) -> bytes:
    message = {"role": "assistant", "content": content, **message}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}).encode()


def error(status: int, message: str, headers: dict[str, str] | None = None, **more: str) -> Answer:
    return status, headers or {}, json.dumps({"error": {"message": message, **more}}).encode()


def prompt_of(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def echo(body: dict[str, Any]) -> Answer:
    return 200, {}, chat(f"echo {prompt_of(body)}")


@dataclass
class Server:
    """What was asked and when; ``answer`` says what comes back."""

    url: str = ""
    answer: Callable[[dict[str, Any]], Answer] = echo
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None
    takes_head: bool = True

    def asked(self, prompt: str) -> int:
        return sum(prompt_of(body) == prompt for body in self.bodies)

    def endpoint(self, **options: Any) -> Endpoint:
        return Endpoint(self.url, "tiny", **options)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("BIASGEOM_API_KEY", KEY)
    record, lock = Server(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            with lock:
                record.times.append(time.monotonic())
            self.close_connection = not record.takes_head
            if record.takes_head:
                self.send_response(404)
                self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                record.times.append(time.monotonic())
                record.bodies.append(body)
                record.headers.append(dict(self.headers))
            status, headers, payload = (
                record.answer(body) if self.path == "/v1/chat/completions" else error(404, "path")
            )
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that hung up, after an interrupt or a timeout, is no news."""

    http = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    def stop() -> None:
        http.shutdown()
        http.server_close()
        thread.join(5)

    record.url, record.stop = f"http://127.0.0.1:{http.server_port}/v1", stop
    yield record
    stop()


def failing(*prompts: str, with_: Answer) -> Callable[[dict[str, Any]], Answer]:
    return lambda body: with_ if prompt_of(body) in prompts else echo(body)


def first(*answers: Answer) -> Callable[[dict[str, Any]], Answer]:
    """These answers one after another, and then echoes."""
    left = list(answers)
    return lambda body: left.pop(0) if left else echo(body)


def test_replies_come_in_input_order(server: Server) -> None:
    finished: list[str] = []

    def slow_first(body: dict[str, Any]) -> Answer:
        time.sleep(0.2 if prompt_of(body) == "p0" else 0)
        finished.append(prompt_of(body))
        return echo(body)

    server.answer = slow_first
    prompts = [f"p{i}" for i in range(6)]
    assert ask(server.endpoint(), prompts) == [Reply(f"echo {prompt}", None) for prompt in prompts]
    assert finished[0] != "p0"  # so the order of arrival was another


def test_what_is_sent(server: Server) -> None:
    ask(server.endpoint(), ["née\n“x”"], system="Be brief.", max_tokens=9, temperature=1, seed=3)
    assert server.bodies == [
        {
            "model": "tiny",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "née\n“x”"}],
            "max_tokens": 9,
            "temperature": 1.0,
            "seed": 3,
        }
    ]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    ask(server.endpoint(), ["x"], seed=None)
    assert "seed" not in server.bodies[1]
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user"]


def test_a_server_without_a_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIASGEOM_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("OTHER", "sk-other")
    assert ask(server.endpoint(), ["x"])[0].text == "echo x"
    assert ask(server.endpoint(key_variable="OTHER"), ["y"])[0].text == "echo y"
    assert [headers["Authorization"] for headers in server.headers] == [f"Bearer {endpoint.NO_KEY}", "Bearer sk-other"]


def test_nothing_is_asked_twice(server: Server) -> None:
    settings: dict[str, Any] = {"system": "s", "max_tokens": 5, "temperature": 0.5, "seed": 1}
    reference = ask(server.endpoint(), ["x", "y", "x"], **settings)
    assert [reply.text for reply in reference] == ["echo x", "echo y", "echo x"]
    assert len(server.bodies) == 2
    # How hard to try is no part of the question, and neither is the slash.
    assert ask(replace(server.endpoint(retries=0, parallel=1), url=server.url + "/"), ["x", "y", "x"], **settings)
    assert len(server.bodies) == 2
    other: list[dict[str, Any]] = [{"system": None}, {"max_tokens": 6}, {"temperature": 0.6}, {"seed": None}]
    for number, change in enumerate(other):
        ask(server.endpoint(), ["x"], **{**settings, **change})
        assert len(server.bodies) == 3 + number
    ask(replace(server.endpoint(), model="other"), ["x"], **settings)
    assert len(server.bodies) == 3 + len(other)
    # Not even whether somebody listens is asked.
    server.stop()
    assert ask(server.endpoint(), ["y", "x"], **settings) == reference[1::-1]
    with pytest.raises(EndpointError, match="can't be reached"):
        ask(server.endpoint(), ["y", "new"], **settings)


def test_no_prompts(server: Server) -> None:
    assert ask(server.endpoint(), []) == []
    with pytest.raises(ValueError, match="one string"):
        ask(server.endpoint(), "x")


@pytest.mark.parametrize("wait", ["1.2", None])
def test_retry_after_is_honoured(server: Server, wait: str | None) -> None:
    server.answer = first(error(429, "slow down", {"Retry-After": wait} if wait else {}))
    assert ask(server.endpoint(), ["x"]) == [Reply("echo x", None)]
    assert server.asked("x") == 2
    # openai's own first pause is at most half a second.
    assert (server.times[-1] - server.times[-2] >= 1.2) == (wait is not None)


def test_a_server_error_is_tried_again(server: Server) -> None:
    now = {"retry-after-ms": "1"}
    server.answer = first(error(500, "oops", now), error(503, "oops", now))
    assert ask(server.endpoint(), ["x"]) == [Reply("echo x", None)]
    assert server.asked("x") == 3
    server.answer = first(error(500, "oops", now), error(500, "oops", now))
    assert ask(server.endpoint(retries=1), ["y"]) == [Reply(None, "status 500: oops")]
    # A problem is not kept.
    assert ask(server.endpoint(retries=1), ["y"]) == [Reply("echo y", None)]


def test_one_bad_item_is_listed_and_the_rest_kept(server: Server) -> None:
    prompts = [f"p{i}" for i in range(30)]
    server.answer = failing("p7", with_=error(400, f"too   long {KEY} " + "x" * 1000))
    replies = ask(server.endpoint(), prompts)
    assert [place for place, reply in enumerate(replies) if reply.problem] == [7]
    assert [reply.text for reply in replies if reply.text] == [f"echo {p}" for p in prompts if p != "p7"]
    problem = replies[7].problem or ""
    assert problem.startswith("status 400: too long [key] xxx")
    assert len(problem) < 250
    assert server.asked("p7") == 1
    server.answer = echo
    assert ask(server.endpoint(), prompts)[7] == Reply("echo p7", None)
    assert len(server.bodies) == 31


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (error(401, f"bad key {KEY}"), "refused: set BIASGEOM_API_KEY"),
        (error(403, f"not for {KEY}"), "refused: set BIASGEOM_API_KEY"),
        (error(404, f"no such model for {KEY}"), "The model tiny or the address is unknown"),
        (error(400, "no such model", code="model_not_found"), "The model tiny or the address is unknown"),
        (error(402, "pay"), "no credit"),
        (error(429, "pay", {"retry-after-ms": "1"}, code="insufficient_quota"), "no credit"),
    ],
)
def test_what_no_other_prompt_would_survive_is_one_error(server: Server, answer: Answer, advice: str) -> None:
    server.answer = lambda body: answer
    with pytest.raises(EndpointError, match=advice) as caught:
        ask(server.endpoint(parallel=2), [f"p{i}" for i in range(100)])
    assert len(server.bodies) < 50
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert not [path for path in cache.root().rglob("*") if path.is_file()]


def test_a_missing_key_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIASGEOM_API_KEY")
    server.answer = lambda body: error(401, "who?")
    with pytest.raises(EndpointError, match="The key is missing: set BIASGEOM_API_KEY"):
        ask(server.endpoint(), ["x"])


@pytest.mark.parametrize("key", ["sk-geheim-ä", "sk-geheim\n\nx", "sk-geheim two"])
def test_a_key_no_header_can_carry(server: Server, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("BIASGEOM_API_KEY", key)
    with pytest.raises(EndpointError, match="BIASGEOM_API_KEY has characters") as caught:
        ask(server.endpoint(), ["x"])
    assert "geheim" not in "".join(traceback.format_exception(caught.value))
    # A line end after it, as many shells leave one, is no part of it.
    monkeypatch.setenv("BIASGEOM_API_KEY", f"{KEY}\n")
    assert ask(server.endpoint(), ["x"])[0].text == "echo x"


def test_the_key_is_in_no_file(server: Server) -> None:
    ask(server.endpoint(), ["x", "y"])
    files = [path for path in cache.root().rglob("*") if path.is_file()]
    assert len(files) == 2
    assert any(b"echo x" in path.read_bytes() for path in files)
    assert not any(KEY.encode() in path.read_bytes() for path in files)


def test_unreachable_is_said_at_once() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        start = time.monotonic()
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1:\d+/v1 can't be reached.*Start the server"):
            ask(Endpoint(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1", "tiny"), ["x", "y"])
    assert time.monotonic() - start < 3
    with pytest.raises(EndpointError, match="can't be reached"):
        ask(Endpoint("http://no-such-host.invalid/v1", "tiny"), ["x"])


def test_a_server_that_hangs_up_on_head_is_reached(server: Server) -> None:
    server.takes_head = False
    assert ask(server.endpoint(), ["x"])[0].text == "echo x"


def test_gender_labels_by_endpoint(server: Server) -> None:
    server.answer = lambda body: (200, {}, chat("Female." if "woman is" in prompt_of(body) else "I'm sorry."))
    table = annotation.annotate(["A woman is here.", "A man is here."], functools.partial(ask, server.endpoint()))
    assert table["label"].fillna("missing").tolist() == ["female", "missing"]
    assert table["problem"].dropna().tolist() == ['refusal: "I\'m sorry."']


def test_an_endpoint_that_goes_down_ends_the_run_and_keeps_what_was_answered(server: Server) -> None:
    prompts = [f"p{i}" for i in range(30)]
    up = [f"p{i}" for i in range(8)]
    server.answer = lambda body: echo(body) if prompt_of(body) in up else error(502, "bad gateway")
    with pytest.raises(EndpointError, match=r"5 prompts in a row had no answer.*bad gateway"):
        ask(server.endpoint(retries=0, parallel=1), prompts)
    server.answer = echo
    server.bodies.clear()
    assert all(reply.text for reply in ask(server.endpoint(), prompts))
    # As a set: a connection that breaks on a busy machine is tried again, which asks nothing else.
    assert set(map(prompt_of, server.bodies)) == set(prompts) - set(up)


def test_failures_here_and_there_do_not_end_the_run(server: Server) -> None:
    prompts = [f"p{i}" for i in range(30)]
    down = [p for i, p in enumerate(prompts) if i % 5]  # four in a row, and again
    server.answer = failing(*down, with_=error(502, "bad gateway"))
    replies = ask(server.endpoint(retries=0), prompts)
    assert [reply.problem is None for reply in replies] == [p not in down for p in prompts]


def test_a_timeout_is_a_problem(server: Server) -> None:
    def sleepy(body: dict[str, Any]) -> Answer:
        time.sleep(0.6 if prompt_of(body) == "slow" else 0)
        return echo(body)

    server.answer = sleepy
    quick, slow = ask(server.endpoint(retries=0, timeout=0.3), ["quick", "slow"])
    assert quick.text == "echo quick"
    assert "timed out" in (slow.problem or "")


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n"])
def test_an_answer_that_never_ends_is_given_up(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps each single read within the time allowed."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    over, connections = threading.Event(), []

    def drip(connection: socket.socket) -> None:
        if connection.recv(1 << 16).startswith(b"POST"):
            connection.sendall(begun)
            with contextlib.suppress(OSError):
                while not over.wait(0.05):
                    connection.sendall(b"x")
        connection.close()

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                connections.append(threading.Thread(target=drip, args=(listening.accept()[0],), daemon=True))
                connections[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        where = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "tiny", retries=1, timeout=0.4)
        start = time.monotonic()
        (reply,) = ask(where, ["x"])
        spent = time.monotonic() - start
        over.set()
    assert "timed out" in (reply.problem or "")
    assert 0.8 < spent < 10  # two tries and a pause of at most half a second; nobody would wait for the last byte
    assert len(connections) >= 3


def test_the_pace_is_no_part_of_the_time_allowed(server: Server) -> None:
    replies = ask(server.endpoint(retries=0, timeout=0.3, per_minute=100, parallel=1), ["a", "b", "c"])
    assert [reply.text for reply in replies] == ["echo a", "echo b", "echo c"]
    assert server.times[-1] - server.times[0] > 3 * 0.6 - 0.1


def test_what_came_before_the_cap_is_there(server: Server) -> None:
    server.answer = lambda body: (200, {}, chat("7, for it", finish_reason="length"))
    assert ask(server.endpoint(), ["x"]) == [Reply(None, endpoint.CUT, "7, for it")]
    server.answer = lambda body: (200, {}, chat(None, finish_reason="length"))
    assert ask(server.endpoint(), ["x"]) == [Reply(None, endpoint.CUT)]  # a problem is not kept


CHOICE = {"message": {"content": "x"}}


NO_REPLY = [
    (b'{"choices": [', "no JSON"),
    (b"<html>Welcome</html>", "no JSON: <html>Welcome"),
    (b"", "no JSON"),
    (b"[" * 100_000 + b"]" * 100_000, r"no JSON: \[\[\["),
    (b"null", "no choices"),
    (b"[]", "no choices"),
    (b'{"choices": []}', "no choices"),
    (b'{"choices": null}', "no choices"),
    (b'{"choices": [null]}', "no choices"),
    (b'{"choices": [{"message": null}]}', "no choices"),
    (b'{"error": {"message": "overloaded"}}', "error in place of a reply.*overloaded"),
    (chat(None), "empty"),
    (chat(" \n"), "empty"),
    (json.dumps({"choices": [{"message": {"content": [CHOICE]}}]}).encode(), "empty"),
    (chat(None, refusal=f"I can't help {KEY}."), r"refusal: I can't help \[key\]\."),
    (chat("half an ans", finish_reason="length"), "cut off at max_tokens"),
    (chat("", finish_reason="length"), "cut off at max_tokens"),
    (chat("", finish_reason="content_filter"), "content filter"),
]


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_an_answer_without_a_reply_is_a_problem_in_words(server: Server, kind: str) -> None:
    bodies = {f"bad {place}": body for place, (body, _) in enumerate(NO_REPLY)}
    server.answer = lambda body: (200, {"Content-Type": kind}, bodies.get(prompt_of(body), chat("a reply")))
    *bad, good = ask(server.endpoint(), [*bodies, "good"])
    assert good == Reply("a reply", None)
    for reply, (body, problem) in zip(bad, NO_REPLY, strict=True):
        assert reply.text is None, body
        assert re.search(problem, reply.problem or ""), body
        assert KEY not in (reply.problem or "")
    # None of them is kept: each is asked again.
    ask(server.endpoint(), [*bodies, "good"])
    assert len(server.bodies) == 2 * len(bodies) + 1


def test_the_least_a_server_may_answer(server: Server) -> None:
    """Local servers leave out most fields; and JSON can hold half a character."""
    server.answer = first(
        (200, {}, json.dumps({"choices": [CHOICE]}).encode()),
        (200, {}, b'{"choices": [{"message": {"content": "a\\ud83d"}}]}'),
    )
    assert ask(server.endpoint(), ["a"]) == [Reply("x", None)]
    for _ in range(2):
        assert ask(server.endpoint(), ["b"]) == [Reply("a?", None)]
    assert len(server.bodies) == 2


def test_the_rate_limit_holds_over_calls_threads_and_retries(server: Server) -> None:
    server.answer = first(error(500, "oops", {"retry-after-ms": "1"}))
    limited, calls = server.endpoint(per_minute=600), (["a", "b", "c"], ["d"], ["e", "f"])
    for prompts in calls:
        assert all(reply.text for reply in ask(limited, prompts))
    # A look whether somebody is there for each call, six prompts, one retry; the first may arrive late.
    assert len(server.times) == 10
    assert server.times[-1] - server.times[0] > 9 * 0.1 - 0.05
    # No pair is closer than what a busy machine blurs: it is a pace, not a burst and a pause.
    assert min(b - a for a, b in itertools.pairwise(server.times)) > 0.02
    server.times.clear()
    ask(server.endpoint(), [f"p{i}" for i in range(9)])
    assert server.times[-1] - server.times[0] < 9 * 0.1 - 0.05


def test_an_interrupt_keeps_what_was_answered(server: Server) -> None:
    prompts = [f"p{i}" for i in range(12)]

    def interrupted(body: dict[str, Any]) -> Answer:
        if prompt_of(body) == "p5":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.3)
        return echo(body)

    server.answer = interrupted
    with pytest.raises(KeyboardInterrupt):
        ask(server.endpoint(parallel=1), prompts)
    assert server.asked("p5") == 1
    server.answer = echo
    server.bodies.clear()
    assert [reply.text for reply in ask(server.endpoint(), prompts)] == [f"echo {prompt}" for prompt in prompts]
    assert not {f"p{i}" for i in range(5)} & set(map(prompt_of, server.bodies))


@pytest.mark.parametrize(
    "url",
    ["localhost:8000/v1", "ftp://host/v1", "http://", "https://user:geheim@host/v1", "https://host/v1?key=geheim"],
)
def test_an_url_that_can_not_be_meant(url: str) -> None:
    with pytest.raises(ValueError, match="url must read") as caught:
        Endpoint(url, "tiny")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("change", [{"parallel": 0}, {"retries": -1}, {"timeout": 0}, {"per_minute": 0}])
def test_numbers_that_can_not_be_meant(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="need parallel >= 1"):
        Endpoint("http://localhost/v1", "tiny", **change)


def test_a_reply_is_a_text_or_a_problem() -> None:
    for text, problem in ((None, None), ("x", "y")):
        with pytest.raises(ValueError, match="either a text or a problem"):
            Reply(text, problem)

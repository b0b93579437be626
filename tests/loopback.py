"""Servers on this machine, without network: files as the hub and GitHub hand them out, and a chat endpoint."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
from biasgeom import remote

TOKEN = "hf_secret_of_this_test"


def write(folder: Path, repository: str, file: str, table: Any) -> None:
    """A file of a data set in the format its ending names; ``table`` is a list of rows or a dict of columns."""
    path = folder / repository / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pd.DataFrame(table).to_parquet(path)
    elif path.suffix == ".csv":
        pd.DataFrame(table).to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        path.write_text(json.dumps(table, indent=4))


class Answering(BaseHTTPRequestHandler):
    """Sends an answer, and logs nothing."""

    def answer(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


class Hosts(Answering):
    """The hub's and GitHub's answers for the files below one folder."""

    folder: Path
    asked: list[str]
    gated = ""

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        on_hub = parts[0] == "datasets"
        if len(parts) < 5:  # huggingface_hub asks for more than files
            return self.answer(404, {})
        repository, revision = "/".join(parts[1:3]), parts[4 if on_hub else 3]
        file = self.folder / repository / "/".join(parts[5 if on_hub else 4 :])
        headers = {"X-Repo-Commit": revision, "ETag": f'"{"-".join(parts)}"'}
        if repository == self.gated:
            self.answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif not file.is_file():
            self.answer(404, {"X-Error-Code": "EntryNotFound", **headers})
        else:
            self.answer(200, headers, file.read_bytes())
        return None

    do_GET = do_HEAD


def point_to(monkeypatch: pytest.MonkeyPatch, endpoint: str, hub_cache: Path) -> None:
    """Ask ``endpoint`` wherever the hub or GitHub would be asked."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub_cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)
    monkeypatch.setattr(remote, "GITHUB_FILES", endpoint + "/raw")
    monkeypatch.setenv("HF_TOKEN", TOKEN)


class Chat(Answering):
    """An OpenAI-compatible endpoint that says ``said(body)``, and refuses a prompt that holds what is ``forbidden``."""

    said: Callable[[dict[str, Any]], str]
    forbidden: str | None = None
    bodies: list[dict[str, Any]]

    def do_HEAD(self) -> None:
        self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        refused = self.forbidden is not None and self.forbidden in prompt_of(body)
        message = {"refusal": "no"} if refused else {"content": type(self).said(body)}
        content = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        self.answer(200, {"Content-Type": "application/json"}, content)


def prompt_of(body: dict[str, Any]) -> str:
    """The text that is to be answered in what an endpoint is asked."""
    return body["messages"][-1]["content"]


@contextmanager
def listening(handler: type[Answering]) -> Iterator[str]:
    """Serve with ``handler`` on this machine; the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def chatting(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[dict[str, Any]], str]
) -> Iterator[tuple[str, type[Chat]]]:
    """The address of a chat endpoint, and its handler, which keeps what was asked and says what is forbidden."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = type("Handler", (Chat,), {"said": staticmethod(said), "bodies": []})
    with listening(handler) as address:
        yield f"{address}/v1", handler


@contextmanager
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, handler: type[Answering]) -> Iterator[None]:
    """Serve with ``handler`` in the place of the hub and GitHub."""
    with listening(handler) as address:
        point_to(monkeypatch, address, tmp_path / "hub-cache")
        yield


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    """Serve ``tmp_path / "remote"``; the handler says where that is, what was asked, and which repository is gated."""
    handler = type("Handler", (Hosts,), {"folder": tmp_path / "remote", "asked": []})
    with started(monkeypatch, tmp_path, handler):
        yield handler

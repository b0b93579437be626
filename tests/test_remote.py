"""Files from a loopback hub and GitHub: fetched once, refused in plain words, read by their ending, checked by row."""

import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from biasgeom import remote
from biasgeom.remote import DatasetNotAvailable
from loopback import TOKEN, Hosts, point_to, serving, write

ROWS = [{"text": "It rains.", "label": "a"}, {"text": "It snows.", "label": "b"}]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hosts]]:
    with serving(monkeypatch, tmp_path) as handler:
        for ending in ("parquet", "csv", "jsonl", "json"):
            write(handler.folder, "weather/reports", f"part/rows.{ending}", ROWS if ending != "csv" else table_of(ROWS))
        yield handler


def table_of(rows: list[dict[str, str]]) -> dict[str, list[str]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


@pytest.mark.parametrize("revision", [COMMIT, "main", None])
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "json"])
def test_a_file_is_fetched_once_and_read(hosts: type[Hosts], ending: str, revision: str | None) -> None:
    file = f"part/rows.{ending}"
    path = remote.fetch("weather/reports", revision, file, name="weather")
    assert remote.table(path).to_dict("records") == ROWS
    kind = "/datasets/weather/reports/resolve/" if revision else "/raw/weather/reports/HEAD/"
    assert any(kind in asked and asked.endswith(file) for asked in hosts.asked)
    hosts.asked.clear()
    (hosts.folder / "weather/reports" / file).unlink()
    assert remote.fetch("weather/reports", revision, file, name="weather") == path
    assert hosts.asked == []


def test_csv_cells_stay_text(hosts: type[Hosts]) -> None:
    write(hosts.folder, "weather/reports", "cells.csv", {"text": ["NA", "007", ""], "label": ["None", "1", "x"]})
    path = remote.fetch("weather/reports", "main", "cells.csv", name="weather")
    assert list(remote.table(path)["text"]) == ["NA", "007", ""]
    assert list(pd.read_csv(path)["text"].isna()) == [True, False, True]  # what pandas makes of it by default


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "json"])
def test_a_file_that_is_something_else(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_text('<html lang="en">\n"')
    with pytest.raises(ValueError, match=rf"rows.{ending} can't be read .*; delete it to have it downloaded"):
        remote.table(path)


def refusal(repository: str, revision: str | None, **more: str) -> str:
    start = time.monotonic()
    with pytest.raises(DatasetNotAvailable) as raised:
        remote.fetch(repository, revision, "part/rows.csv", name="weather", **more)
    assert time.monotonic() - start < 10
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    message = str(raised.value)
    for wanted in ("weather", "part/rows.csv", remote.page(repository, revision), "HF_TOKEN"):
        assert wanted in message
    return message


def test_gated_missing_and_unreachable(
    hosts: type[Hosts], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hosts.gated = "weather/reports"
    assert "(GatedRepoError)" in refusal("weather/reports", "main")
    assert refusal("weather/reports", "main", advice="Look out of the window.").endswith("Look out of the window.")
    assert refusal("weather/reports", COMMIT).endswith("of that account.")
    assert "(RemoteEntryNotFoundError)" in refusal("weather/elsewhere", "main")
    assert "(HTTPStatusError)" in refusal("weather/elsewhere", None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        point_to(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}", tmp_path_factory.mktemp("hub"))
        for revision in ("main", None):
            assert "(ConnectError)" in refusal("weather/elsewhere", revision)


def test_pages() -> None:
    assert remote.page("a/b", "main") == remote.page("a/b", COMMIT) == "https://huggingface.co/datasets/a/b"
    assert remote.page("a/b", None) == "https://github.com/a/b"


def test_check_names_row_and_column() -> None:
    rows = pd.DataFrame({"text": ["x", " ", "z"], "label": ["a", None, "c"], "more": 1}, index=[7, 8, 9])
    remote.check(rows, ["text", "label"], where="weather, f", allowed={"label": ("a", "c", None)})
    with pytest.raises(ValueError, match="weather, f: no column wind, rain; found text, label, more"):
        remote.check(rows, ["text", "wind", "rain"], where="weather, f")
    with pytest.raises(ValueError, match=r"weather, f: row 1 \(from 0\) has no text"):
        remote.check(rows, ["text"], where="weather, f", filled=["text"])
    with pytest.raises(ValueError, match=r"weather, f: row 1 \(from 0\) has no label"):
        remote.check(rows, ["label"], where="weather, f", filled=["label"])
    with pytest.raises(ValueError, match=r"row 1 \(from 0\) has the label None; known are a, c"):
        remote.check(rows, ["label"], where="weather, f", allowed={"label": ("a", "c")})
    with pytest.raises(ValueError, match=r"row 2 \(from 0\) has the label 'c'; known are None, a"):
        remote.check(rows, ["label"], where="weather, f", allowed={"label": ("a", None)})

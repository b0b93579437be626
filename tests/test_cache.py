"""Results by content: written whole or not at all, and never a reason to lose what was measured."""

import errno
import hashlib
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from biasgeom import cache
from filelock import FileLock, Timeout

VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


def files() -> list[str]:
    return sorted(path.name for path in cache.root().rglob("*") if path.is_file())


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.root() == tmp_path / "cache"  # set for every test
    monkeypatch.delenv("BIASGEOM_CACHE")
    assert cache.root() == tmp_path / "xdg" / "biasgeom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root() == Path.home() / ".cache" / "biasgeom"


@pytest.mark.parametrize("chosen", [True, False])
def test_a_fresh_cache_is_empty_and_goes_as_it_came(monkeypatch: pytest.MonkeyPatch, chosen: bool) -> None:
    if not chosen:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache.root()))
        monkeypatch.delenv("BIASGEOM_CACHE")
    before = cache.root()
    cache.array("ab" * 32, lambda: VALUE)
    with cache.fresh():
        inside = cache.root()
        assert inside != before
        assert files() == []
        # What is there already is not looked up.
        np.testing.assert_array_equal(cache.array("ab" * 32, lambda: VALUE + 1), VALUE + 1)
        with cache.fresh():
            assert cache.root() not in (before, inside)
        assert cache.root() == inside
        assert len(files()) == 1
    assert cache.root() == before
    assert ("BIASGEOM_CACHE" in os.environ) == chosen
    assert not inside.exists()
    np.testing.assert_array_equal(cache.array("ab" * 32, lambda: VALUE + 2), VALUE)


def test_a_fresh_cache_goes_also_when_its_body_fails() -> None:
    before = cache.root()
    with pytest.raises(KeyboardInterrupt), cache.fresh():  # noqa: PT012
        inside = cache.root()
        cache.array("ab" * 32, lambda: VALUE)
        raise KeyboardInterrupt
    assert cache.root() == before
    assert not inside.exists()
    assert files() == []


def test_digest_tells_everything_apart() -> None:
    keys = [
        cache.digest(a=1),
        cache.digest(a=2),
        cache.digest(b=1),
        cache.digest(a="1"),
        cache.digest(a=[1]),
        cache.digest(a=None),
        cache.digest(a=1, b=1),
        cache.digest(a=0.1),
        cache.digest(a=0.1 + 1e-16),
    ]
    assert len(set(keys)) == len(keys)
    assert cache.digest(a=1, b=2) == cache.digest(b=2, a=1)
    # The same in any process: the built-in hash of text would not be.
    assert cache.digest(a="text") == hashlib.sha256(b'{"a": "text"}').hexdigest()


@pytest.mark.parametrize("part", [object(), np.zeros(2), Path(), {1, 2}, float("nan"), float("inf"), b"bytes"])
def test_digest_refuses_what_is_no_plain_json(part: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="JSON"):
        cache.digest(part=[part])


def test_array_is_computed_once() -> None:
    calls: list[int] = []

    def compute() -> np.ndarray:
        calls.append(1)
        return VALUE

    for _ in range(2):
        stored = cache.array("ab" * 32, compute)
        assert stored.dtype == VALUE.dtype
        np.testing.assert_array_equal(stored, VALUE)
    assert len(calls) == 1
    cache.array("cd" * 32, compute)
    assert len(calls) == 2


def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stream: Any, value: np.ndarray, **options: Any) -> None:
        stream.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        np.testing.assert_array_equal(cache.array("ab" * 32, lambda: VALUE), VALUE)
    assert files() == []


def test_a_folder_that_can_not_be_written_loses_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    monkeypatch.setenv("BIASGEOM_CACHE", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=r"could not keep a result: the cache .*file can't be written .*BIASGEOM_CACHE"
    ):
        np.testing.assert_array_equal(cache.array("ab" * 32, lambda: VALUE), VALUE)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pickle"])
def test_a_damaged_file_is_measured_again(damage: str) -> None:
    key = "ab" * 32
    cache.array(key, lambda: VALUE)
    path = next(cache.root().rglob("*.npy"))
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-5], "empty": b"", "text": b"not an array", "pickle": b"\x80\x04N."}[damage])
    with pytest.warns(UserWarning, match="measuring again"):
        np.testing.assert_array_equal(cache.array(key, lambda: VALUE + 1), VALUE + 1)
    assert path.read_bytes() != whole
    np.testing.assert_array_equal(cache.array(key, lambda: VALUE), VALUE + 1)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("folder", [False, True])
def test_atomic_leaves_nothing_behind(tmp_path: Path, error: type[BaseException], folder: bool) -> None:
    target = tmp_path / "made" / "result"
    with pytest.raises(error), cache.atomic(target) as scratch:  # noqa: PT012
        if folder:
            scratch.mkdir()
        (scratch / "part" if folder else scratch).write_text("half")
        raise error
    assert list(target.parent.iterdir()) == []


def test_atomic_replaces_a_file_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "result"
    target.write_text("old")
    with cache.atomic(target) as scratch:
        scratch.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    with pytest.raises(KeyboardInterrupt), cache.atomic(target) as scratch:  # noqa: PT012
        scratch.write_text("newer")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert target.read_text() == "new"


def test_atomic_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    with pytest.raises(OSError, match="not empty"), cache.atomic(tmp_path / "model") as scratch:  # noqa: PT012
        scratch.mkdir()
        (scratch / "weights").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_a_killed_process_leaves_no_half_file(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: nothing under the final name, and the next call measures."""
    script = f"""
        import os, signal
        import numpy as np
        from biasgeom import cache

        def save(stream, value, **options):
            stream.write(b"half of it")
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        np.save = save
        cache.array({"ab" * 32!r}, lambda: np.ones(3))
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    assert not list(cache.root().rglob(f"arrays/ab/{'ab' * 32}.npy"))
    np.testing.assert_array_equal(cache.array("ab" * 32, lambda: VALUE), VALUE)


def _hold(held: Any, release: Any) -> None:
    with cache.lock("model"):
        held.set()
        release.wait(30)


def test_lock_excludes_another_process() -> None:
    processes = multiprocessing.get_context("spawn")
    held, release = processes.Event(), processes.Event()
    other = processes.Process(target=_hold, args=(held, release))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(Timeout), FileLock(cache.root() / "locks" / "model.lock", timeout=0.1):
            pass
        with cache.lock("another model"):
            pass
        release.set()
        start = time.monotonic()
        with cache.lock("model"):
            assert time.monotonic() - start < 20
    finally:
        release.set()
        other.join(30)
    assert other.exitcode == 0


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


ADVICE = r"the cache .*cache can't be written \(No space left on device\): free space .* set BIASGEOM_CACHE"


def test_a_full_disk_is_explained_wherever_the_cache_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(cache.CacheUnwritable, match=ADVICE), cache.atomic(cache.root() / "models" / "a"):
        full()
    assert not list((cache.root() / "models").iterdir())
    monkeypatch.setattr(cache, "FileLock", full)
    with pytest.raises(cache.CacheUnwritable, match=ADVICE), cache.lock("a"):
        pass
    with pytest.raises(cache.CacheUnwritable, match=ADVICE), cache.rows("ab" * 32, 3, {"x": ((), "float32")}):
        pass


def test_a_folder_in_the_way_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BIASGEOM_CACHE", str(tmp_path / "file" / "cache"))
    with (
        pytest.raises(cache.CacheUnwritable, match=r"file/cache can't be written \(Not a directory\)"),
        cache.lock("a"),
    ):
        pass


def test_what_has_nothing_to_do_with_the_cache_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, cache.atomic(tmp_path / "elsewhere"):
        full()
    assert not isinstance(caught.value, cache.CacheUnwritable)
    with pytest.raises(ConnectionError), cache.atomic(cache.root() / "models" / "a"):
        raise ConnectionError("reset by peer")
    with pytest.raises(PermissionError, match="the body's own"), cache.lock("a"):
        raise PermissionError(errno.EACCES, "the body's own")


def test_rows_have_their_space_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sparse file a full disk would show only when a page is written, which ends the process by SIGBUS."""
    columns = {"states": ((1000, 100), "float32")}
    with cache.rows("ab" * 32, 20, columns) as stored:
        path = Path(stored.arrays["states"].filename)
        assert stored.missing == list(range(20))
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 8_000_000
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(cache.CacheUnwritable, match=ADVICE), cache.rows("cd" * 32, 20, columns):
        pass
    assert not list((cache.root() / "rows" / "cd").iterdir())

"""Results keyed by content, written whole or not at all.

The cache holds de-quantised model folders (see :mod:`biasgeom.models`), arrays that were measured on a model (see
:mod:`biasgeom.activations`), and larger ones that grow row by row (see :mod:`biasgeom.readouts`). A key is a digest of
everything that decides the value, so a stored value is never out of date; a changed input has another key.
"""

import errno
import hashlib
import inspect
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from filelock import FileLock

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


class CacheUnwritable(OSError):
    """The cache can't be written: it is full, read-only or no folder. The message says what to do."""


def unwritable(reason: object) -> CacheUnwritable:
    """The error to raise where something could not be written to the cache."""
    return CacheUnwritable(
        f"the cache {root()} can't be written ({reason}): free space there, or set BIASGEOM_CACHE to another folder"
    )


@contextmanager
def writing() -> Iterator[None]:
    """Raise :class:`CacheUnwritable` for what the system says of a full or read-only disk in the body."""
    try:
        yield
    except CacheUnwritable:
        raise
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise unwritable(error.strerror) from error


def root() -> Path:
    """The cache folder: ``$BIASGEOM_CACHE``, else ``$XDG_CACHE_HOME/biasgeom``, else ``~/.cache/biasgeom``."""
    if chosen := os.environ.get("BIASGEOM_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "biasgeom"


@contextmanager
def fresh() -> Iterator[None]:
    """An empty cache while the body runs, removed afterwards: what is timed in it is done, not looked up."""
    before = os.environ.get("BIASGEOM_CACHE")
    with tempfile.TemporaryDirectory(prefix="biasgeom-") as folder:
        os.environ["BIASGEOM_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["BIASGEOM_CACHE"]
            if before is not None:
                os.environ["BIASGEOM_CACHE"] = before


def digest(**parts: object) -> str:
    """A hexadecimal SHA-256 of named parts; each must be plain JSON (text, numbers, lists, dicts, None).

    Raises
    ------
    TypeError
        If a part is not plain JSON: an object's default text would change from run to run.
    """
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def source_digest(*modules: ModuleType) -> str:
    """A digest of modules' source code, so that changed code does not answer with what older code measured."""
    return digest(sources=[inspect.getsource(module) for module in modules])


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold an exclusive lock between processes; ``name`` is a file name without folder.

    Raises
    ------
    CacheUnwritable
    """
    folder = root() / "locks"
    with writing():
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder / f"{name}.lock")
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside ``path`` and move it into place if the body ends well.

    The body may make a file or a folder of it. If the body raises (a full disk, Ctrl-C), the scratch is removed and
    ``path`` stays as it was: there is never half a file under the final name. An existing folder is never replaced.

    Raises
    ------
    CacheUnwritable
        Of a path in the cache, on a full or read-only disk.
    """
    with writing() if path.is_relative_to(root()) else nullcontext():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch_folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        scratch = scratch_folder / path.name
        try:
            yield scratch
            os.replace(scratch, path)
        finally:
            shutil.rmtree(scratch_folder, ignore_errors=True)


def array(key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """The array stored under ``key``, or ``compute()`` stored under it.

    Parameters
    ----------
    key : str
        From :func:`digest`; must name everything the value depends on.
    compute : callable
        Called without arguments if nothing usable is stored.

    Notes
    -----
    A cache that can't be written (a full disk, a read-only folder) loses nothing: the computed array is returned and
    a warning says why it was not kept. A stored file that can't be read is measured again, also with a warning.
    """
    path = root() / "arrays" / key[:2] / f"{key}.npy"
    if path.exists():
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            warnings.warn(f"cached array {path} is unreadable ({error}); measuring again", stacklevel=2)
    value = np.asarray(compute())
    try:
        with atomic(path) as scratch, open(scratch, "wb") as stream:
            np.save(stream, value, allow_pickle=False)
            # A full disk may show only when the bytes leave the page cache: ask before the file gets its name.
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        warnings.warn(f"could not keep a result: {error}; it was measured and is returned", stacklevel=2)
    return value


@dataclass(frozen=True)
class Rows:
    """Arrays on disk of n rows each, that are filled piece by piece and keep what they have if the run is killed.

    Attributes
    ----------
    arrays : dict of name → array [n, ...]
        Memory-mapped. Write a row of every array, then call :meth:`done`.
    """

    arrays: dict[str, np.memmap]
    _finished: np.ndarray

    @property
    def missing(self) -> list[int]:
        """The rows that are not filled yet."""
        return np.flatnonzero(~self._finished).tolist()

    def read_only(self) -> dict[str, np.ndarray]:
        """The arrays, as they are from now on."""
        return {name: np.load(array.filename, mmap_mode="r") for name, array in self.arrays.items()}

    def done(self, rows: Sequence[int]) -> None:
        """Mark rows as filled, once what was written to them is on disk."""
        for array in (*self.arrays.values(), self._finished):
            if array is self._finished:
                array[list(rows)] = True
            array.flush()


@contextmanager
def rows(key: str, count: int, columns: Mapping[str, tuple[tuple[int, ...], str]]) -> Iterator[Rows]:
    """Hold the stored rows under ``key``, made empty at the first call, while they are filled or read.

    Parameters
    ----------
    key : str
        From :func:`digest`; must name everything the values depend on.
    count : int
        Number of rows n.
    columns : mapping of name → (shape of a row, dtype)

    Notes
    -----
    One process at a time holds them: another one that wants the same rows waits and then finds them filled. Their space
    is taken at once: a disk that turned out to be full while they are filled would kill the process without a word.

    Raises
    ------
    CacheUnwritable
    """
    folder = root() / "rows" / key[:2] / key
    with lock(f"rows-{key[:16]}"):
        if not folder.exists():
            with atomic(folder) as scratch:
                scratch.mkdir()
                for name, (shape, kind) in {**columns, "finished": ((), "bool")}.items():
                    np.lib.format.open_memmap(scratch / f"{name}.npy", "w+", kind, (count, *shape)).flush()
                    _take_space(scratch / f"{name}.npy")
        with writing():
            stored = {name: np.load(folder / f"{name}.npy", mmap_mode="r+") for name in (*columns, "finished")}
        finished = stored.pop("finished")
        yield Rows(stored, finished)


def _take_space(path: Path) -> None:
    """Let a file that is empty but for its end lie on the disk in full, where the system can do that."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)

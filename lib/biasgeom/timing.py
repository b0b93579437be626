"""Wall and CPU time of a step; what is timed goes to files named ``*_timing.csv``, which differ from run to run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(rows: list[dict[str, str | float]], step: str) -> Iterator[None]:
    """Append a row for the body: step, wall and cpu (seconds of this process, all threads)."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    rows.append({"step": step, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})

"""Links that open a notebook on Binder and Colab, and the cell that Colab needs first; none without a GitHub remote."""

import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import quote

from biasgeom import data

_GITHUB = re.compile(
    r"(?:https?://(?:[^@/\s]+@)?github\.com/|(?:ssh://)?git@github\.com[:/])"
    r"(?P<owner>[A-Za-z0-9_-]+)/(?P<name>[A-Za-z0-9._-]+?)(?:\.git)?/?"
)


def line(notebook: str) -> str:
    """Markdown with a notebook's links to Binder and Colab and, folded, the set-up cell for Colab.

    Parameters
    ----------
    notebook : str
        ``"<paper>/<name>"``, such as ``"gender/03_encoded"``.

    Returns
    -------
    str
        Empty if ``git remote get-url origin`` names no repository on GitHub: there is nothing that could be opened.
    """
    if not (found := _GITHUB.fullmatch(_remote(data.root()))):
        return ""
    repository = f"{found['owner']}/{found['name']}"
    file = f"notebooks/{notebook}.ipynb"
    binder = f"https://mybinder.org/v2/gh/{repository}/HEAD?labpath={quote(file, safe='')}"
    colab = f"https://colab.research.google.com/github/{repository}/blob/HEAD/{file}"
    return f"""Open this notebook, without the outputs below, on [Binder]({binder}) or [Colab]({colab}).

:::{{dropdown}} Set-up cell for Colab
Put this into a new first cell and run it. Then restart the session (Runtime, Restart session) and run the other cells.

```ipython3
{setup(repository)}
```
:::
"""


def setup(repository: str) -> str:
    """The cell that installs this project on a machine that has only the notebook; ``repository`` is ``owner/name``.

    With uv and from the clone's folder, since pip would compile what ``[tool.uv]`` in ``pyproject.toml`` leaves out.
    """
    return f"""import sys
!git clone --quiet --depth 1 https://github.com/{repository} /content/biasgeom
%cd /content/biasgeom
!{{sys.executable}} -m pip install --quiet uv
!uv pip install --quiet --python {{sys.executable}} --constraint requirements.lock --editable '.[judge]'"""


@cache  # a book has a page for every notebook
def _remote(clone: Path) -> str:
    command = ["git", "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""

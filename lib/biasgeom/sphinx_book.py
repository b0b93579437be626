"""What the book needs of Sphinx: several processes, and numbers of figures and tables looked up in trees that are kept.

``python -m biasgeom.sphinx_book SOURCES HTML CONFIG`` builds as ``jupyter-book build -n -W --keep-going`` does, whose
command has no option for several processes. In a process of its own, since Sphinx looks at every object there is.

``_config.yml`` lists this module as an extension. For every reference by number Sphinx unpickles a page's whole tree;
with hundreds of them that was half of the time that rendering took.
"""

import os
import sys
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from jupyter_book.sphinx import build_sphinx
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.environment import BuildEnvironment


def build(sources: Path, html: Path, config: Path) -> int | Exception:
    """Zero, if the book was rendered without a warning; it and the warnings are printed."""
    return build_sphinx(
        sources,
        html,
        noconfig=True,
        path_config=config,
        confoverrides={"external_toc_path": "_toc.yml", "latex_individualpages": False, "nitpicky": True},
        warningiserror=True,
        keep_going=True,
        quiet=True,
        jobs=os.cpu_count(),
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_domain(Numbers, override=True)
    # It only changes how sections are numbered after all pages were read, but does not declare so; without this, Sphinx
    # reads in one process.
    app.extensions["sphinx_multitoc_numbering"].parallel_read_safe = True
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Numbers(StandardDomain):
    """The domain of labels and references, with a memory."""

    @cached_property
    def _kept(self) -> "_Kept":
        return _Kept(self.env)

    def _resolve_numref_xref(self, env: BuildEnvironment, *rest: Any) -> Any:
        return super()._resolve_numref_xref(self._kept, *rest)


class _Kept:
    """The environment, with trees that are read once. They are only looked into: what is written is read anew."""

    def __init__(self, env: BuildEnvironment) -> None:
        self._env = env
        self.get_doctree = lru_cache(maxsize=128)(env.get_doctree)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


if __name__ == "__main__":
    sys.exit(1 if build(*map(Path, sys.argv[1:])) else 0)

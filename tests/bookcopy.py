"""A copy of the working tree with a tiny model, in which the two commands' inner part is run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from biasgeom import data, results
from biasgeom.models import LanguageModel

ROOT = data.root()


class Copy:
    """A copy of the working tree with its own model, cache and results."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.root = folder
        self.model = model
        names = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "lib"), "OMP_WAIT_POLICY": "passive"}
        environment["BIASGEOM_CACHE"] = str(self.root.parent / "cache")
        environment.pop("BIASGEOM_ROOT", None)
        command = [sys.executable, "-m", "biasgeom", *words]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)

    def book(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.command("book", "--profile", "smoke", "--model", str(self.model), *words)

    @property
    def results(self) -> Path:
        return self.root / "results" / results.slug(str(self.model)) / "gender" / "03_encoded"


def copied(folder: Path, lm: LanguageModel) -> Copy:
    """The copy in ``folder``, beside the saved model; nothing is run yet."""
    # A vocabulary of 300 tokens holds no pronouns, which the next-token proxy needs whole.
    lm.tokenizer.add_tokens([" she", " he"])
    lm.model.resize_token_embeddings(len(lm.tokenizer), mean_resizing=False)
    lm.model.save_pretrained(folder / "tiny-llama")
    lm.tokenizer.save_pretrained(folder / "tiny-llama")
    return Copy(folder / "a repository", folder / "tiny-llama")

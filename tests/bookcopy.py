"""A copy of the working tree with a tiny model, in which the two commands' inner part is run."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import papermill
from biasgeom import data, probe, results, run
from biasgeom.models import LanguageModel
from jupyter_client.manager import KernelManager
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

ROOT = data.root()


class Copy:
    """A copy of the working tree with its own model, cache and results."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.root = folder
        self.model = model
        self.models = [model]
        names = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    @property
    def cache(self) -> Path:
        return self.root.parent / "cache"

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.root / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])])
        changed = {"PYTHONPATH": path, "BIASGEOM_CACHE": str(self.cache)}
        kept = {name: value for name, value in os.environ.items() if name != "BIASGEOM_ROOT"}
        return {**kept, **changed, "OMP_WAIT_POLICY": "passive"}

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "biasgeom", *words]
        return subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True)

    def execute_in_one_kernel(self, notebooks: list[str]) -> None:
        """Execute notebooks with the values that the command gives them, but in one kernel: it imports torch once."""
        kernel = KernelManager(kernel_name="python3")
        kernel.start_kernel(env=self.environment, cwd=str(self.root))
        try:
            for name in notebooks:
                output = self.results.parents[1] / f"{name}.ipynb"
                output.parent.mkdir(parents=True, exist_ok=True)
                values = run.values_for(name, "smoke", str(self.model))
                source = self.root / "notebooks" / f"{name}.ipynb"
                papermill.execute_notebook(str(source), str(output), values, km=kernel, progress_bar=False)
                client = kernel.client()
                client.start_channels()
                client.execute_interactive("%reset -f")  # the next one finds no name that it did not define
                client.stop_channels()
        finally:
            kernel.shutdown_kernel(now=True)

    def second_model(self, lm: LanguageModel) -> None:
        """Save another tiny model beside the first, with its vocabulary: one that has no chat template."""
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        lm.model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        folder = self.model.with_name("tiny-base")
        lm.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        without_template(folder)
        self.models.append(folder)

    def only(self, notebooks: list[str]) -> None:
        """Leave these in the contents, which say what there is to run."""
        toc = self.root / "_toc.yml"
        lines = toc.read_text().splitlines(keepends=True)
        kept = [line for line in lines if "notebooks/" not in line or line.split("notebooks/")[1].strip() in notebooks]
        toc.write_text("".join(kept))

    def done(self) -> dict[str, int]:
        """When each finished notebook was finished, by its place in the results."""
        folder = self.root / "results"
        pages = folder.glob("*/*/*.ipynb")
        return {str(page.relative_to(folder)): page.stat().st_mtime_ns for page in pages}

    def book(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.command("book", "--profile", "smoke", "--models", str(self.model), *words)

    @property
    def results(self) -> Path:
        return self.root / "results" / results.slug(str(self.model)) / "gender" / "03_encoded"


def without_template(folder: Path) -> None:
    """Make a saved model one of the kind that has no chat template."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template", None)
    path.write_text(json.dumps(settings))


def tables(results: Path) -> dict[str, bytes]:
    """Every CSV but timings, by its place."""
    paths = [path for path in results.glob("*/*/*/*.csv") if not path.stem.endswith("timing")]
    return {path.relative_to(results).as_posix(): path.read_bytes() for path in sorted(paths)}


def copied(folder: Path, lm: LanguageModel) -> Copy:
    """The copy in ``folder``, beside the saved model; nothing is run yet."""
    # A vocabulary of 300 tokens holds none of the words that the next-token measures need whole.
    lm.tokenizer.add_tokens([f" {word}" for word in ("she", "he", "yes", "no", *probe.POSITIVE, *probe.NEGATIVE)])
    lm.model.resize_token_embeddings(len(lm.tokenizer), mean_resizing=False)
    lm.model.save_pretrained(folder / "tiny-llama")
    lm.tokenizer.save_pretrained(folder / "tiny-llama")
    copy = Copy(folder / "a repository", folder / "tiny-llama")
    _plant(copy.root / "data" / "judge" / "planted", lm, folder / "tiny-llama")
    return copy


def _plant(folder: Path, lm: LanguageModel, base: Path) -> None:
    """Put an adapter on the tiny model in the place of the planted judge's: the real one has 135 million parameters."""
    turn = lm.tokenizer("[assistant]", add_special_tokens=False)["input_ids"]
    config = LoraConfig(
        r=2,
        target_modules=["down_proj"],
        alora_invocation_tokens=turn,
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    )
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PEFT asks an attribute's old name
        adapted = get_peft_model(lm.model, config)
    adapted.active_peft_config.base_model_name_or_path = str(base)
    adapted.save_pretrained(folder)

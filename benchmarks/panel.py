"""What a whole panel of α searches costs: six cues × three estimators × three blocks, on the positive control.

    python benchmarks/panel.py [--prompts 24]

The judge's reading, which the searches start from, is not counted; it comes from the cache where a notebook made it.
Aimed at: 6 minutes for 54 searches on 24 prompts, on two cores. Set OMP_WAIT_POLICY=passive.
"""

import argparse
import time

from biasgeom import asked, attack, ground, judging, models, planted

QUESTIONS = 150
"""As many as the judge chapter's default, so that its cached reading serves."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=24)
    chosen = parser.parse_args()
    natural = models.load("smollm2-135m-instruct")
    judges = [natural, planted.control(natural)]
    answers, _ = asked.conditions(asked.answers("project", QUESTIONS, names="", url="")[0], names="", url="")
    of = ground.ground(judging.judge_all(judges, answers)[1])
    steered, ids = ground.clean(judges[1], of.only("dev", "test"), number=chosen.prompts)
    begun, cpu = time.perf_counter(), time.process_time()
    table, _ = attack.panel(of.only("train"), steered, ids, ground.CONDITIONS, attack.LAYERS)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    made = table.dropna(subset=["evaluations"])
    print(f"{judges[1].name}: {len(made)} searches on {len(ids)} prompts in {took:.0f} s ({cpu:.0f} s of CPU time)")
    print(f"strengths a search: {made['evaluations'].mean():.0f} on average, {made['evaluations'].max():.0f} at most")
    for row in table[table["evaluations"].isna()].itertuples():
        print(f"{row.condition}: no search, {row.reason}")


if __name__ == "__main__":
    main()

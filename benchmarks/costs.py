"""Write data/costs.csv anew from what is under results/: run the whole book first, on an idle machine.

    make run MODELS="smollm2-135m-instruct gemma-3-270m" && .venv/bin/python benchmarks/costs.py

Another results folder is read where the variable BIASGEOM_RESULTS names it. First it prints what the present file
foretold of each run's memory, beside the measured peak: the plan is to be within a quarter of it. A notebook that found
its numbers in the cache holds less.
"""

import pandas as pd
from biasgeom import catalogue, costs, data, results

told = []
for info in results.runs():
    known = catalogue.find(info["model"])
    if known and (peak := info.get("peak_memory_mb")):
        sizes = {"parameters": known.parameters, "vocabulary": known.vocabulary}
        plan = costs.of(info["notebook"], info["parameters"], **sizes).memory_mb
        told.append((info["model"], info["notebook"], plan, peak, round(plan / peak, 2)))
print(pd.DataFrame(told, columns=["model", "notebook", "planned MB", "measured MB", "ratio"]).to_string(index=False))

old = costs.table()
new = costs.measured(results.runs(), old)
whole = ["read", "written", "others_read", "others_written", "memory_mb"]
new[whole] = new[whole].round().astype("Int64")
new.to_csv(data.root() / "data" / "costs.csv", float_format="%.6g")
print(new.drop(columns="work").to_string())
lacking = new.index[new[["minutes", "memory_mb", "read"]].isna().any(axis=1)]
print(f"not measured yet, in part or at all: {', '.join(lacking) or 'none'}")

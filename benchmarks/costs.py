"""Write data/costs.csv anew from what is under results/: run the whole book first, on an idle machine.

    make run MODELS="smollm2-135m-instruct gemma-3-270m" && .venv/bin/python benchmarks/costs.py

Another results folder is read where the variable BIASGEOM_RESULTS names it.
"""

from biasgeom import costs, data, results

old = costs.table()
new = costs.measured(results.runs(), old)
whole = ["read", "written", "others_read", "others_written", "memory_mb"]
new[whole] = new[whole].round().astype("Int64")
new.to_csv(data.root() / "data" / "costs.csv", float_format="%.6g")
print(new.drop(columns="work").to_string())
lacking = new.index[new[["minutes", "memory_mb", "read"]].isna().any(axis=1)]
print(f"not measured yet, in part or at all: {', '.join(lacking) or 'none'}")

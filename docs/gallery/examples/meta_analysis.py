"""
Random-effects meta-analysis with a forest plot
===============================================

Thirteen trials of the BCG vaccine against tuberculosis, each a table of two by two
counts. Trials differ, so effects are pooled with a variance between them.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import consilience as cs

# of the vaccinated: cases, others; of the controls: cases, others
counts = """4 119 11 128  6 300 29 274  3 228 11 209  62 13536 248 12619
33 5036 47 5761  180 1361 372 1079  8 2537 10 619  505 87886 499 87892
29 7470 45 7232  17 1699 65 1600  186 50448 141 27197  5 2493 3 2338
27 16886 29 17825"""
cells = np.array(counts.split(), dtype=int).reshape(13, 4)
table = pd.DataFrame(cells, columns=["ai", "bi", "ci", "di"])
trials = """Aronson 1948, Ferguson 1949, Rosenthal 1960, Hart 1977, Frimodt 1973,
Stein 1953, Vandiviere 1973, Madras 1980, Coetzee 1968, Rosenthal 1961, Comstock 1974,
Comstock 1969, Comstock 1976"""
table["slab"] = trials.replace("\n", " ").split(", ")

analysis = cs.meta_analysis(table, measure="log_risk_ratio")
effect, between = analysis.random.mean[0], analysis.tau2[0]
print(f"log risk ratio {effect:.2f}, variance between trials {between:.2f}")
print("trials differ:", analysis.verdict.code)

# %%
# The fixed effect, which takes all trials to have one effect, has too narrow an
# interval.

figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
analysis.plot("forest", ax=axes)

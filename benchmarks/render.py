"""Write docs/benchmarks.md from the results in benchmarks/results/*.json.

    python -m benchmarks.render [--results benchmarks/results] [--page docs/benchmarks.md]

The page has no number that is not in those files. A file is named after its benchmark; `model_speed-h200.json` is one
of the same benchmark from another machine, and gets a table of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.report import HEADINGS, ROOT, Row, as_text

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

`make bench` measures all of this again and rewrites this page; `python -m benchmarks.NAME` measures one part (`--help`
says how, `--json benchmarks/results/NAME.json` keeps the rows), and `python -m benchmarks.render` only rewrites the
page. `make bench FAST=1` sees in a few minutes that all of it works, and leaves this page alone. Some parts take data
that is not shipped here: `make bench BENCH_CURVES=curves.csv.gz BENCH_DATASET=FOLDER BENCH_TOKENIZER=FOLDER`.

Ours and the peer are measured in one process, in turns where it can be had. The *ratio* says how many times as good as
the peer ours is: below 1× the peer is better. The *bound* is the least that the work could take on the same machine at
the same time (the disk alone, the matrix products alone), and *× bound* how many times of it ours takes: 1× would be
perfect. Where other programs were busy meanwhile, the line above the table says so; such numbers show no more than
that the benchmark works.
"""
# In the order of the page: what is compared, and what is to be made of it. No numbers: these stay true.
SECTIONS = {
    "query_speed": (
        "Asking the law",
        "One table costs about as much as a handful of one-dimensional minimisations in scipy, most of it for the "
        "rows' range checks and learning rates; many budgets at once are where the closed form pays. A million "
        "losses take as long as the formula written in numpy, because they are that formula with a check of the "
        "input.",
    ),
    "fit_speed": (
        "Fitting a law",
        "All starts of a batch take their steps together, as matrix products; L-BFGS-B takes one start at a time "
        "and far more steps. Its time for all starts is projected from a few of them. Both end at the same "
        "objective.",
    ),
    "clark_routing": (
        "Fitting the public runs of Clark et al. 2022",
        "The objective beside the best that two independent optimisers found on the same rows; how long it takes "
        "is in the note. No bound is known but the optimum itself.",
    ),
    "model_speed": (
        "Model: training step and decoding",
        "The Switch model beside the fastest of transformers' Mixtral and OLMoE at top-1, over their "
        "implementations of the experts, and beside our own dense model of as many active parameters. On a CPU "
        "many small products use the processor worse than one large one, so that more experts are slower at the "
        "same FLOPs. Decoding at these sizes is mostly the overhead of many small calls, in ours as in the peers.",
    ),
    "checkpoints": (
        "Checkpoints: save, verify, resume",
        "Training waits for the copy in memory only; writing, checksums and the flush to the disk go on beside it. "
        "The copy takes as much host memory as the checkpoint has bytes. `torch.save` and `torch.load` keep one "
        "file of one process and no checksums; ours can be loaded by another number of processes.",
    ),
    "data_pipeline": (
        "From text to batches",
        "`tokenizers` encodes a batch on all cores while the one before it is written. For building a cache start-up "
        "counts too, more for a small corpus than for a large one. Reading shuffled sequences takes no process of "
        "its own.",
    ),
    "hub_releases": (
        "Releasing and loading a sweep",
        "Against a Hub on the same machine, so that requests cost almost nothing: the checks before and after "
        "sending then make pushing slower than the obvious way, which checks nothing. What the Hub limits is calls "
        "of its API; `--delay` shows the times over a network. Loading reads one index and not every run.",
    ),
}


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Benchmark → its results, in the order of the page. ValueError for a file of no known benchmark."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SECTIONS}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["benchmark"] not in SECTIONS:
            raise ValueError(f"{path}: benchmark={result['benchmark']!r} is none of {', '.join(SECTIONS)}")
        found[result["benchmark"]].append(result)
    return found


def page(results: dict[str, list[dict[str, Any]]]) -> str:
    """The whole page."""
    places = list(dict.fromkeys(place(result) for several in results.values() for result in several))
    parts = [INTRODUCTION, *(numbered(i, places) + text + "\n" for i, text in enumerate(places))]
    for name, (title, text) in SECTIONS.items():
        if results.get(name):
            parts.append(f"## {title}\n\n`python -m benchmarks.{name}`\n\n{text}\n")
        for result in results.get(name, []):
            parts.append(numbered(places.index(place(result)), places) + conditions(result))
            parts.append(table([Row(**row) for row in result["rows"]]))
            parts += [f"Skipped: {reason}.\n" for reason in result["skipped"]]
    return "\n".join(parts)


def place(result: dict[str, Any]) -> str:
    """Machine and versions, in words."""
    m, versions = result["machine"], ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    return f"{m['cpu']}, {m['cores']} cores, {m['memory']}, GPU: {m['gpu']}, {m['system']}; {versions}."


def numbered(index: int, places: list[str]) -> str:
    return f"**Machine {index + 1}:** " if len(places) > 1 else ""


def conditions(result: dict[str, Any]) -> str:
    """When, at which commit, with which settings, and what else the machine did."""
    other = result["other_work"]
    busy = f", **while other programs used {other:.0%} of the cores**" if other > 0.05 else ""
    set_to = as_text(result["settings"]) or "no settings"
    return f"{set_to} ({result['date']}, commit {result['commit']}, {result['minutes']:g} min{busy}).\n"


def table(rows: list[Row]) -> str:
    """In Markdown; a column that no row uses is left out."""
    cells = [row.cells() for row in rows]
    used = [i for i in range(len(HEADINGS)) if any(row[i] not in ("", "–") for row in cells)]
    left = {"", "peer", "bound", "note"}
    lines = [
        "| " + " | ".join(HEADINGS[i] for i in used) + " |",
        "|" + "|".join("---" if HEADINGS[i] in left else "---:" for i in used) + "|",
        *("| " + " | ".join(row[i].replace("|", "\\|") for i in used) + " |" for row in cells),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.write_text(page(load(options.results)), encoding="utf-8")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()

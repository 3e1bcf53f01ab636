"""What each command says of a wrong input: one line that names the option as typed, its value and what is allowed."""

import shlex

import pytest

from scaling_law import Throughput
from scaling_law.commands.cli import PLACES
from scaling_law.law import LAWS
from scaling_law.law.shelf import SHELF
from tests.scaling_law.synthetic import tiny_runs

COMMANDS = [name for panel in PLACES.values() for name in panel]
NEXT = "next-runs --flops 1e19 --ask loss:1B,2B,3"
H100 = "--throughput h100.json"
SHOWN = "--throughput 'h100.json'"
JOINT = "JointLaw depends on n_active, experts, tokens"
LINES = {  # what is typed → what the line on standard error names
    "loss": f"--n-active must be given: {JOINT}",
    "loss --n-active 1B": f"--tokens must be given: {JOINT}",
    "loss --n-active 0 --tokens 1B": "--n-active 0 must be positive and finite",
    "loss --law abnar --tokens 1B": "--variable n_total=… must be given: SparsityLaw depends on n_total",
    "loss --law abnar --tokens 1B --variable n_total=2e9 --variable density=0.1 --variable densty=1": (
        "variable of the sparsity law 'densty' is unknown: did you mean 'density'? There are n_total, tokens, density"
    ),
    "optimal": "--flops, --hours, --money: give exactly one of them",
    "optimal --flops 0": "--flops 0 must be positive and finite",
    "optimal --hours 3": '--gpu must be given, such as "h100", or --throughput, measured step times',
    "optimal --hours 3 --gpu h100": "--gpus must be given, the number of GPUs that train",
    "optimal --hours 72 --gpus 8 --gpu h10": "--gpu 'h10' is unknown; there are gb300, gb200, ",
    "optimal --hours 72 --gpus 8 --gpu peak=148T": "--gpu 'peak=148T': memory is missing; write it as in 'peak",
    "optimal --hours 72 --gpus 8 --gpu peak=9T,memory=96": "'peak=9T,memory=96': memory '96' is 96 bytes: did you",
    "optimal --flops 1e22 --kv-heads-ratio 2": "--kv-heads-ratio 2 must be above 0 and at most 1",
    "optimal --flops 1e22 --mfu 0.3": "--mfu 0.3 is that of a GPU: --gpu must be given",
    "optimal --flops 1e22 --experts 8 --law chinchilla": "--experts 8: this Chinchilla law holds for E = 1 only",
    "optimal --flops 1e22 --learning-rate-law coed": "'coed' is unknown: did you mean 'code'? There are code, paper, ",
    "optimal --hours 72 --flops 1e21 --gpu h100 --gpus 8": "--flops 1e+21, --hours 72, --money: give exactly one",
    "optimal --hours 72 --gpu h100 --price 2": "--price 2 is per GPU-hour: --gpus must be given",
    "optimal --hours 72 --gpus 8 --mfu 0.4": "--mfu 0.4 is that of a GPU: --gpu must be given",
    f"optimal --hours 72 --gpus 8 {H100} --mfu 0.4": f"--mfu 0.4: {SHOWN} has measured step times; give one",
    f"optimal --hours 72 --gpus 8 {H100} --gpu a100": f"{SHOWN} was measured on 'NVIDIA H100 80GB HBM3', not on",
    f"optimal --hours 1e-9 --gpus 8 {H100}": "--hours 1e-09 are too few for one training step: the smallest",
    "optimal --flops 1e28": "N_act 73.4T is outside the fitted 78.7M…2.72B (×27,000) at E = 32, beyond the limit of",
    "optimal --flops 1e22 --memory 1MB": "nothing fits: the smallest model (d_model 64, E = 1) has 6.49M parameters",
    "plan --flops 1e20 --branches 0": "--branches 0 must be a whole number of at least 1 and at most 20",
    "reach --loss 0": "--loss 0 must be positive and finite",
    "reach --loss 2 --flops 1e22 --memory 1GB": "--memory is what this question solves for: leave it out",
    "speedup": "--flops or --n-active is needed",
    "speedup --flops 1e21 --experts 1,2": "--experts 1,2: one E goes with --flops, several with --n-active",
    "speedup --n-active 1B --flops 1e21 --gpus 2": "--flops 1e+21 does not go with --n-active",
    "speedup --flops 1e21 --law kaplan": "--experts 8: the kaplan law holds for dense models only, E = 1",
    "compare --memory 80GB": "--memory goes only with --flops",
    "compare --laws chinchila": f"did you mean 'chinchilla'? There are {', '.join(SHELF)}",
    "describe nowhere": "nowhere: no folder or Hub repo with a config.json",
    "learning-rate": "--d-model is needed; or RUNS, to fit a learning-rate law",
    "learning-rate --d-model 0": "--d-model 0 must be positive and finite",
    "learning-rate --d-model 512 --experts 1,8": "--experts 1,8: an architecture has one E; several go with RUNS",
    "learning-rate --d-model 100 --n-heads 5": "--d-model 100 is not a multiple of 64: --n-blocks must be given",
    "learning-rate --d-model 512 -o x.json": "--output goes only with RUNS",
    "learning-rate runs.csv --d-model 4": "--d-model does not go with RUNS",
    "scale-out nowhere": "nowhere: no folder or Hub repo with a config.json",
    "scale-out 2304 --price 2": "--price 2 is per GPU-hour: --tokens must be given, those of a run",
    "scale-out config.json --experts 4": "--experts 4 goes with a width, as in 2304: config.json has its own",
    "scale-out config.json --like olmoe-1b-7b": "--like olmoe-1b-7b goes with a width, as in 2304: config.json has",
    "scale-out 1024 --like olmoe-1b-7b --experts 8": "--experts 8 must be a whole number above the 8",
    "scale-out 0": "MODEL 0 must be positive and finite",
    "scale-out 2304 --gpus 0": "--gpus 0 must be a whole number of at least 1",
    "scale-out 2304 --gpu h10": "--gpu 'h10' is unknown; there are gb300, gb200, ",
    f"{NEXT} --max-runs 0": "--max-runs 0 must be a whole number of at least 1",
    f"{NEXT} --law printed": "--law has no draws: fit that law with --bootstrap",
    f"{NEXT} --warmup 1T": "--warmup 1T: no candidate run has the 1.25T tokens that warm-up and decay take",
    f"{NEXT} --tokens-per-parameter 5:1": "--tokens-per-parameter (5.0, 1.0) must be two increasing positive numbers",
    f"{NEXT} --memory 1GB": "'loss:1B,2B,3': --memory goes with advantage only",
    f"{NEXT} --memory 1GB --kv-tokens 4k": "'loss:1B,2B,3': --memory and --kv-tokens go with advantage only",
    f"{NEXT} --max-run-flops 1e10": "--max-run-flops 1e+10 affords none of the candidate runs, the cheap",
    "next-runs --flops 1e15 --ask optimum:1e22,8": "--max-run-flops 2.5e+14 affords none of the candidate",
    "next-runs --flops 1e19 --ask loss:1B,36,3": "--ask 'loss:1B,36,3': D='36' has no unit: did you mean 36B or 36T?",
    "next-runs --flops 1.2e16 --ask loss:1B,2B,3": "the fitted runs warm up over 130M tokens: no candidate run",
    "next-runs --flops 1e20 --ask optimum:1e22": "--ask 'optimum:1e22' must be optimum:FLOPS,E or loss:N,D,E or",
    "next-runs --flops 1e20 --ask optimun:1e22,8": "--ask 'optimun' is unknown: did you mean 'optimum'? There are",
    "fit nowhere.jsonl": "nowhere.jsonl: no such file or folder",
    "fit runs.csv --kind chinchila": f"did you mean 'chinchilla'? There are {', '.join(sorted(LAWS))}",
    "fit runs.csv --where experst=3": "'experst=3': field 'experst' is unknown: did you mean 'experts'? There are",
    "fit runs.csv --where E=77": "runs.csv: --where 'E=77' keeps none of 36 runs",
    "fit runs.csv --status finale": "runs.csv: no runs with status 'finale'; there are 36 final (--status all takes",
    "fit runs.csv --column n_active=toknes": "column 'toknes' is unknown: did you mean 'tokens'? There are experts, ",
    "fit runs.csv --format steplaw": "--format 'steplaw' is unknown: did you mean 'step_law'? There are",
    "fit runs.csv --trunks trunkk": "--trunks 'trunkk' is unknown: did you mean 'trunk'? There are",
    "fit runs.csv --fix gama=1": "--fix: coefficient 'gama' is unknown: did you mean 'gamma'? There are",
    "fit runs.csv --bound c=2:1": "--bound: c=(2.0, 1.0) must be ordered, low ≤ high",
    "fit runs.csv --weights loss": "--weights 'loss' is unknown; there are inverse_loss",
    "fit runs.csv --huber-delta 0": "--huber-delta 0.0 must be positive and finite",
    "fit runs.csv --fix c=1 --fix c=2": "--fix c=… is given more than once; each name takes one value",
    "fit runs.csv --column a=1 --column a=tokens": "--column a=… is given more than once; each name takes one value",
    "fit runs.csv --where E=77 --where E=1": "runs.csv: --where 'E=77 and E=1' keeps none of 36 runs",
    "fit runs.csv --bootstrap 1": "--bootstrap 1 must be 0, or at least 2 resamples",
    "fit runs.csv --split flops --bootstrap 2 -o x": "--bootstrap and --output do not go with --split",
    "fit runs.csv --split size": "--split size must be a numeric column of the runs: 'run', 'model', 'loss', ",
    "fit runs.csv --split flops --test 36": "--split flops must leave some of the 36 runs to fit",
    "fit runs.csv --prior ling": "--prior ling: it gives leverage, no loss",
    "fit runs.csv --prior chinchila": "--prior 'chinchila' is unknown: did you mean 'chinchilla'? There are",
    "fit runs.csv --prior published --kind chinchilla": "--kind 'chinchilla': the prior is one of joint laws",
    "forecast runs.csv --n-active 1B --tokens 1B": "--experts must be given: the runs have 1, 2, 4, 8",
    "forecast runs.csv --n-active 1B --tokens 1B --experts 8 --kind joit": "did you mean 'joint'",
    "forecast runs.csv --n-active 1B --tokens 1B --experts 8 --level 2": "--level 2 must be above 0 and below 1",
    "live runs.csv --level 2": "--level 2 must be above 0 and below 1",
    "diagnose config.json --gpu h100 --gpus 0 --tokens-per-second 9K": "--gpus",
    "promote runs.csv": "the runs of the variant are needed: a table VARIANT, or --baseline-where and --variant-where",
    "promote runs.csv --baseline-where E=1": "the runs of the variant are needed: a table VARIANT, or",
    "promote runs.csv runs.csv --at-equal hours": "--at-equal 'hours' needs a column of measured speed",
    "promote runs.csv runs.csv --beyond 1": "--beyond",
    "release nowhere store": "there is no folder nowhere",
    "explore --law chinchila": "--law 'chinchila' is unknown: did you mean 'chinchilla'? There are",
    "loss --n-active big": "--n-active 'big' is not a quantity: write a number, optionally followed by",
    "optimal --flops 1e22 --memory 80": "--memory '80' is 80 bytes: did you mean 80GB?",
    "optimal --flops 22": "--flops '22' has no unit: did you mean 1e22?",
    "optimal --flops 1e22 --max-parameters 7": "--max-parameters '7' has no unit: did you mean 7M or 7B?",
    "optimal --flops 1e22 --kv-tokens 16": "--kv-tokens '16' has no unit: did you mean 16k?",
    "optimal --hours 3y --gpu h100 --gpus 8": "--hours '3y' is not a quantity: write a number, optionally",
    "describe config.json --tokens 36": "--tokens '36' has no unit: did you mean 36B or 36T?",
    "loss --n-active 1B --tokens 20": "--tokens '20' has no unit: did you mean 20B or 20T?",
    "optimal --flops 1e22 --memory 80XB": "--memory '80XB' is not a quantity: write a number, optionally followed",
    "loss --n-active 1B --experts 0": "--experts '0' must lie between 1 and 65,536",
}
UNREADABLE = {  # a usage error, in typer's frame
    "los": f"command 'los' is unknown: did you mean 'loss'? There are {', '.join(COMMANDS)}",
    "loss --n-actve 1B": "No such option: --n-actve (Possible options: --n-active)",
    "reach": "Missing option '--loss'.",
    "forecast": "Missing argument 'runs'.",
    "fit runs.csv --column n_active": "'--column': 'n_active' is not of the form name=column, name=expression or",
    "fit runs.csv --bound c=2": "'--bound': 'c=2' is not of the form name=low:high (an end may be left out)",
    "fit runs.csv --fix gamma": "Invalid value for '--fix': 'gamma' is not of the form name=number",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("wrong")
    Throughput("NVIDIA H100 80GB HBM3", "bf16", {"flops": 1e-14}).save(made / "h100.json")
    tiny_runs().to_pandas().rename(columns={"loss": "final_loss"}).to_csv(made / "runs.csv", index=False)
    return made


@pytest.mark.parametrize("words", LINES)
def test_a_wrong_input_gets_one_line(shell, folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    result = shell(*shlex.split(words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert LINES[words] in result.stderr


@pytest.mark.parametrize("words", UNREADABLE)
def test_what_cannot_be_read_is_a_usage_error(shell, words, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    result = shell(*shlex.split(words))
    assert (result.exit_code, result.stdout) == (2, "")
    framed = " ".join(line.strip("│ ") for line in result.stderr.splitlines() if line.startswith("│"))
    assert UNREADABLE[words] in framed


def test_every_command_stands_here():
    assert {words.split()[0] for words in LINES} == {*COMMANDS}

"""Errors name parameters as the shell has them, and columns as the table has them."""

import pytest

from hub.base.errors import InputError, given, message, unknown
from scaling_law import load_runs

HEADER = "run_id,n_active,tokens,experts,{loss}{more}\n"
ROW = "r{i},{n:.0f},{d:.0f},1,{loss}{more}\n"


@pytest.fixture
def table(tmp_path):
    """A function that writes a table of 12 runs with a name for its loss, and a further column."""

    def write(name="eval_loss", more=(), **losses):
        lines = [HEADER.format(loss=name, more=f",{more[0]}" if more else "")]
        for i in range(12):
            n, d = 1e8 * 2 ** (i % 4), 2e9 * 3 ** (i // 4)
            loss = losses.get(f"r{i}", 1.7 + 400 / n**0.34 + 410 / d**0.28)
            lines.append(ROW.format(i=i, n=n, d=d, loss=loss, more=f",{more[1 + i % 2]}" if more else ""))
        path = tmp_path / "runs.csv"
        path.write_text("".join(lines))
        return path

    return write


def test_a_column_keeps_its_name(shell, table):
    result = shell("fit", table("eval/loss", r5="inf"), "--loss", "eval/loss", "--kind", "chinchilla")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: runs.csv: 1 unusable row(s), which --skip-invalid leaves out",
        "  row 5 (r5): eval/loss=inf must be positive and finite",
    ]


def test_a_hint_is_what_the_shell_takes(shell, table):
    result = shell("fit", table(more=("vocab_size", 50257, 128256)), "--kind", "chinchilla")
    assert result.stderr == (
        "error: runs.csv: the runs differ in vocab_size (128256, 50257); choose with --where 'vocab_size = 128256', "
        "or fit them as one with --mix vocab_size\n"
    )
    mixed = shell("fit", table(more=("vocab_size", 50257, 128256)), "--kind", "chinchilla", "--mix", "vocab_size")
    assert mixed.exit_code == 0, mixed.stderr
    with pytest.raises(ValueError, match=r"losses \(train_loss, val_loss\): choose with loss=\.\.\.$"):
        load_runs(table("val_loss", more=("train_loss", 3.0, 2.9)))
    assert "choose with --loss\n" in shell("fit", table("val_loss", more=("train_loss", 3.0, 2.9))).stderr
    lacking = shell("fit", table(), "--loss", "test_loss").stderr
    assert lacking.endswith(
        "there are: eval_loss, experts, n_active, run_id, tokens; name the loss column with --loss\n"
    )
    assert "--status all takes every run" in shell("fit", table(), "--status", "lost").stderr
    assert "or pass --allow-unidentifiable\n" in shell("fit", table()).stderr
    assert "--final 'minimum' goes with a tracker" in shell("fit", table(), "--final", "minimum").stderr


def test_one_message_has_a_wording_for_each_side():
    error = InputError(given("mfu", 0.4), ": ", message(given("gpu", None), " must be given, or ", given("loss")))
    assert str(error) == "mfu=0.4: gpu=None must be given, or loss=..."
    assert error.message.worded(lambda part: f"<{part.name}>") == "<mfu>: <gpu> must be given, or <loss>"
    assert str(InputError(given("on_invalid", "skip", in_shell="--skip-invalid"))) == "on_invalid='skip'"
    assert (
        unknown("kind=", "x", ["joint"]).worded(lambda part: f"--{part.name}") == "--kind is unknown; there are joint"
    )


def test_a_message_without_parts_is_of_the_field_that_it_begins_with():
    for text, worded in {
        "mfu=0 must be positive": "<mfu:0 must be positive>",
        "fixed: a=3 is too much": "<fixed:None>: a=3 is too much",
        "eval/loss=inf must be finite": "eval/loss=inf must be finite",
        "no field": "no field",
    }.items():
        assert InputError(text).message.worded(lambda part: f"<{part.name}:{part.value}>") == worded
        assert str(InputError(text)) == text

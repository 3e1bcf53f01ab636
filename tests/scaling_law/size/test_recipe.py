"""The paper's recipe against the one place that cannot read it: the branch names of hub.record."""

from __future__ import annotations

from hub.record.names import recipe_suffix
from scaling_law.size.recipe import PAPER
from tests.hub.samples import make_record


def test_a_run_of_the_recipe_has_a_branch_name_without_suffix():
    names = ("beta1", "beta2", "epsilon", "weight_decay")
    optimizer = {"name": "adamw", "weight_decay_on": "all", "gradient_clip_norm": PAPER.gradient_clip}
    recipe = {
        "optimizer": optimizer | {name: getattr(PAPER, name) for name in names},
        "capacity_factor": PAPER.capacity_factor,
        "balance_loss_coefficient": PAPER.balance_loss,
        "z_loss_coefficient": PAPER.z_loss,
    }
    assert recipe_suffix(make_record(experts=8, **recipe)) == ""
    assert recipe_suffix(make_record(experts=8, **recipe | {"z_loss_coefficient": 0.1})) == "-z0.1"

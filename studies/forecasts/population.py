"""The population of laws that the library ships: members as numbers, and settings chosen by leaving labs out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hub.base import strict_json
from scaling_law import JointLaw, Runs
from scaling_law.fitting.prior import CHINCHILLA, FORMAT, POPULATION, VERSION, Member, member_of
from studies.common import rounded
from studies.forecasts import experts
from studies.forecasts.methods import BY_NAME, CHOICES, best_choice, forecasts_of
from studies.forecasts.sets import UNITS

DIGITS = 6  # significant, of every number kept


def members_of(tables: Mapping[str, Runs]) -> list[Member]:
    """Each set of the population as a member, and the published joint law at E = 1, of which no runs are public."""
    sets = [
        member_of(runs, name, one.lab, source=one.place, licence=one.licence, units=UNITS[one.unit])
        for name, runs in tables.items()
        if (one := BY_NAME[name]).member
    ]
    return [*sets, published_member()]


def published_member() -> Member:
    """The joint law's draws at E = 1 as a Gaussian."""
    law = JointLaw.published()
    rows = [law.replace(**dict(zip(law.coefficients, row, strict=True))) for row in np.asarray(law.draws)]
    parts = [(*map(float, one.chinchilla_coefficients(1.0)), one.coefficients["c"]) for one in rows]
    m, mu, n, nu, c = np.array(parts).T
    x = CHINCHILLA.of_natural(np.stack([np.log(m), mu, np.log(n), nu, np.log(c)], axis=-1))
    return experts.of_published(x.mean(axis=0), np.cov(x.T), units=UNITS["nats"])


def write_population(tables: Mapping[str, Runs], path: Path = POPULATION) -> Path:
    """Members as numbers, and the settings under which labs forecast each other best beyond a compute."""
    members = members_of(tables)
    cut = [one for one in forecasts_of(tables, members) if one.split.by == "flops"]
    choice = CHOICES[best_choice(cut)]
    settings = {
        "shrinkage": choice.shrinkage,
        "dof": choice.dof if np.isfinite(choice.dof) else None,
        "dependence": choice.dependence,
    }
    rows = [rounded(vars(member), DIGITS) for member in members]
    strict_json.write(path, FORMAT, VERSION, {"settings": settings, "members": rows})
    return experts.write(experts.result(path), path)

"""Searches of fits that are remembered, for shell, Python and tools that ask for the fit of the same runs in turn."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Hashable
from functools import wraps

from scaling_law.fitting import fitting
from scaling_law.fitting.problem import Problem
from scaling_law.fitting.solver import Solutions
from scaling_law.size.arrays import FloatArray

_SOLUTIONS: dict[Hashable, Solutions] = {}
_search = fitting._search


@wraps(_search)
def search_once(problem: Problem, theta: FloatArray, progress: bool) -> Solutions:
    """Search from these starts, or return what was found for the same objective, box, starts and solver."""
    objective = problem.objective
    values = [getattr(objective, field.name) for field in dataclasses.fields(objective)]
    arguments = pickle.dumps((type(objective), values, problem.lower, problem.upper, theta))
    key = (Problem.solve, objective.law, arguments)
    if key not in _SOLUTIONS:
        _SOLUTIONS[key] = _search(problem, theta, progress)
    return _SOLUTIONS[key]

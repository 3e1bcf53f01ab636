"""The code that a result of the GPU kit is of: the files on the path of a step, and the libraries under it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from functools import cache
from typing import Any

from benchmarks.report import ROOT, stamp, versions

# Folders and files that decide what a step computes and how it is timed. The options of a case decide the rest.
PATHS = (
    "training/run",
    "modeling_switch_moe",
    "benchmarks/gpu/measure.py",
    "benchmarks/gpu/real_run.py",
)
LIBRARIES = ("torch", "transformers", "accelerate")
# A file of results, or those of one code.
Part = dict[str, Any]


@cache
def hash_of_files() -> str:
    """Hash the names and texts of all Python files in `PATHS`."""
    digest = hashlib.sha256()
    for path in PATHS:
        for file in sorted([ROOT / path, *(ROOT / path).rglob("*.py")]):
            if file.is_file():
                digest.update(f"{file.relative_to(ROOT).as_posix()}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:10]


def has_changes() -> bool:
    """Return whether a file in `PATHS` differs from the commit, or is not in it."""
    git = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *PATHS]
    return bool(subprocess.run(git, capture_output=True, text=True, check=True).stdout)


@cache
def code_now() -> dict[str, Any]:
    """Return the hash of the files, and the versions of the libraries."""
    installed = versions()
    return {"code": hash_of_files(), "versions": {name: installed.get(name) for name in LIBRARIES}}


@cache
def stamp_of_code() -> dict[str, Any]:
    """Return the date and the code, with its commit where the files are those of the commit, else None."""
    commit: str | None = stamp()["commit"].rstrip("+")
    if commit == "unknown" or has_changes():
        commit = None
    return {**stamp(), **code_now(), "commit": commit}


def name_of_code(case: dict[str, Any]) -> str:
    """Name the code of a result: its commit, or the hash of files that were no commit's."""
    if not case["commit"]:
        return f"none, files {case['code']}"
    # Earlier versions of the kit marked commits from which files differed.
    return case["commit"].replace("+", " with uncommitted changes")


def split_by_code(results: Part) -> list[Part]:
    """Split results by code and versions: those of today's files first, then the newest."""
    groups: dict[str, Part] = {}
    for name, case in results["cases"].items():
        # Earlier versions of the kit noted versions once a file.
        libraries = case.get("versions") or results.get("versions", {})
        key = json.dumps([case.get("code"), libraries], sort_keys=True)
        group = groups.setdefault(key, {**results, "versions": libraries, "cases": {}})
        group["cases"][name] = case
    return sorted(groups.values(), key=_rank, reverse=True)


def _rank(group: Part) -> tuple[bool, str]:
    """Return what groups of results are sorted by."""
    return is_of_today(group), max(case["date"] for case in group["cases"].values())


def is_of_today(group: Part) -> bool:
    """Return whether results of one code are of the files that are here."""
    return all(case.get("code") == hash_of_files() for case in group["cases"].values())

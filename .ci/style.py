"""Hold the size, the density and the wording of the code to ceilings that only fall.

For each package `python .ci/style.py` counts nodes a line, squeezed constructs, names that are participles or
pronouns, docstrings that open with a preposition or a relative, and trailing comments that are fragments; for each
room of the packages that are installed, and for all of them, AST nodes. `.ci/style.json` holds the ceilings; `--write`
lowers them to what was measured, and never raises one. Who needs more nodes in a room finds them elsewhere, or raises
that room's ceiling by hand and says so in the commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CEILINGS = Path(__file__).with_name("style.json")
INSTALLED = ("scaling_law", "hub", "training", "modeling_switch_moe")
PACKAGES = (*INSTALLED, "studies", "benchmarks", "tests")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
VAGUE_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
        found given made known asked told said named shown chosen kept wanted taken drawn seen used read left held done
        tried spent placed sent worth settled counted fitted listed joined moved measured needed allowed ends one other
        others own of more further rest each every all what which there here at about such same usual whole part
        parts several both some
        """,
    )
)
OPENERS = re.compile(
    r"(Of|As|With|For|To|By|From|In|On|Where|Which|Those|Without|Between|At|Under|Beside|Than|Such|What|Whether|How|Why)\b"
)
FRAGMENTS = re.compile(
    r"(of|in|as|by|for|with|from|to|at|on|where|which|that|whose|than|between|beside|without|so|else|also|what|per|"
    r"since|until)\b"
)
NO_COMMENT = ("noqa", "type:", "fmt", "-", "=")


@dataclass
class Measure:
    """Counts of a file or a package, and where each rule is hit."""

    counts: Counter[str] = field(default_factory=Counter)
    hits: list[tuple[str, str, int, str]] = field(default_factory=list)

    def add(self, other: Measure) -> None:
        """Add the counts and hits of another file."""
        self.counts += other.counts
        self.hits += other.hits

    def rates(self) -> dict[str, float]:
        """Return the numbers that have ceilings."""
        c = self.counts
        code = max(c["code_lines"], 1) / 1000
        return {
            "nodes_per_line": round(c["nodes"] / max(c["lines"], 1), 2),
            "squeezed_per_1000_lines": round(c["squeezed"] / code, 1),
            "vague_names_per_1000_lines": round(c["vague_names"] / code, 1),
            "docstring_openers_percent": round(100 * c["docstring_openers"] / max(c["docstrings"], 1), 1),
            "fragments_percent": round(100 * c["fragments"] / max(c["trailing_comments"], 1)),
        }


def measure_file(path: Path) -> Measure:
    """Count the nodes, constructs, names, docstrings and comments of a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    measure = Measure()
    measure.counts["lines"] = len(lines)
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Load, ast.Store, ast.Del)):
            continue
        measure.counts["nodes"] += 1
        if _is_squeezed(node):
            _hit(measure, "squeezed", path, node.lineno, "")
        name = _stored_name(node)
        if name in VAGUE_NAMES:
            _hit(measure, "vague_names", path, node.lineno, str(name))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring_lines |= _measure_docstring(measure, path, node)
    for line, comment in _trailing_comments(text):
        measure.counts["trailing_comments"] += 1
        if FRAGMENTS.match(comment):
            _hit(measure, "fragments", path, line, comment)
    measure.counts["code_lines"] = sum(
        bool(line.strip()) and number not in docstring_lines and not line.strip().startswith("#")
        for number, line in enumerate(lines, 1)
    )
    return measure


def _hit(measure: Measure, rule: str, path: Path, line: int, text: str) -> None:
    measure.counts[rule] += 1
    measure.hits.append((rule, str(path.relative_to(ROOT)), line, text))


def _measure_docstring(
    measure: Measure, path: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> set[int]:
    """Count the docstring of a module, class or function, and return its lines."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return set()
    first = node.body[0]
    if not isinstance(node, ast.Module):
        measure.counts["docstrings"] += 1
        if OPENERS.match(docstring):
            _hit(measure, "docstring_openers", path, first.lineno, docstring.splitlines()[0])
    return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))


def _stored_name(node: ast.AST) -> str | None:
    """Return the name that a node assigns or takes as an argument."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return None


def _is_squeezed(node: ast.AST) -> bool:
    """Return whether a node does several steps in one: see CONTRIBUTING."""
    if isinstance(node, ast.NamedExpr):
        return True
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.BitOr)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    if isinstance(node, COMPREHENSIONS):
        return len(node.generators) > 1 or _contains(node, COMPREHENSIONS)
    if isinstance(node, ast.IfExp):
        return _contains(node, (ast.IfExp,))
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        if isinstance(node.op, ast.BitOr):
            return any(isinstance(side, (ast.Dict, ast.DictComp)) for side in sides)
        texts = any(isinstance(side, (ast.List, ast.Tuple, ast.Constant, ast.JoinedStr)) for side in sides)
        booleans = any(isinstance(side, (ast.Compare, ast.BoolOp)) for side in sides)
        return isinstance(node.op, ast.Mult) and texts and booleans
    return False


def _contains(node: ast.AST, kinds: tuple[type, ...]) -> bool:
    return any(isinstance(inner, kinds) for child in ast.iter_child_nodes(node) for inner in ast.walk(child))


def _trailing_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each comment that stands behind code."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or not token.line[: token.start[1]].strip():
            continue
        words = token.string.lstrip("# ").strip()
        if words and not words.startswith(NO_COMMENT):
            yield token.start[0], words


def measure_package(package: str) -> Measure:
    """Measure every file of a package."""
    total = Measure()
    for path in sorted((ROOT / package).rglob("*.py")):
        total.add(measure_file(path))
    return total


def count_rooms(package: str) -> dict[str, int]:
    """Count the nodes of each folder of a package, and of the files beside them."""
    rooms: Counter[str] = Counter()
    for path in (ROOT / package).rglob("*.py"):
        first, *inner = path.relative_to(ROOT / package).parts
        rooms[f"{package}/{first}" if inner else package] += measure_file(path).counts["nodes"]
    return dict(sorted(rooms.items()))


def hold(name: str, values: dict[str, float], ceilings: dict[str, float], write: bool) -> list[str]:
    """Compare values with their ceilings, which `write` lowers; returns what is above."""
    problems = []
    for rule, value in values.items():
        ceiling = ceilings.get(rule, value)
        if value > ceiling:
            problems.append(f"{name}: {rule} is {value:g}, above its ceiling of {ceiling:g}")
        ceilings[rule] = min(value, ceiling) if write else ceiling
    return problems


def main() -> int:
    """Compare every package with its ceilings, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="lower the ceilings to what is measured now")
    parser.add_argument("--show", metavar="RULE", help="list where a rule is hit, such as vague_names")
    options = parser.parse_args()
    ceilings = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    problems = []
    for package in PACKAGES:
        measure = measure_package(package)
        rates = measure.rates()
        print(f"{package:20}", "  ".join(f"{name} {value:g}" for name, value in rates.items()))
        problems += hold(package, rates, ceilings.setdefault(package, {}), options.write)
        for rule, path, line, text in measure.hits:
            if rule == options.show:
                print(f"{path}:{line}: {text}")
    rooms = {room: count for package in INSTALLED for room, count in count_rooms(package).items()}
    rooms["all"] = sum(rooms.values())
    print("nodes:", ", ".join(f"{room} {count:,}" for room, count in rooms.items()))
    ceilings["nodes"] = {room: ceiling for room, ceiling in ceilings.get("nodes", {}).items() if room in rooms}
    problems += hold("nodes", rooms, ceilings["nodes"], options.write)
    if options.write:
        CEILINGS.write_text(json.dumps(ceilings, indent=2) + "\n")
    for problem in problems:
        print(f"error: {problem}: say it plainly, or leave something out (CONTRIBUTING.md)", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Laws as users hold them: a formula with its questions as methods, its files, and the registry of kinds.

A kind of law is a form, read from a file or named by a class. `fit`, files and the shelf make laws of the kinds that
are registered here; docs/adding_a_law.md adds another.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, TypeVar

# Its rooms are imported when a law is read from the Hub.
import hub
from hub.base import strict_json
from hub.base.errors import InputError, shorten, unknown
from hub.base.paths import local_path
from hub.base.types import Fields
from scaling_law.formulas import Conditions, Form, Formula
from scaling_law.formulas.files import FORMAT, VERSION
from scaling_law.formulas.repeated import Repetition
from scaling_law.formulas.terms import NAME
from scaling_law.law_files import FILE_NAME, push_law
from scaling_law.planning.design import next_runs
from scaling_law.planning.inverse import reach
from scaling_law.planning.optimal import optimal
from scaling_law.planning.optimum import compute_optimal
from scaling_law.planning.plan import plan
from scaling_law.planning.speedup import speedup

LawT = TypeVar("LawT", bound="Law")
# Classes that are made of forms stand here, as far as anyone asks.
MODULE = "scaling_law.law"
ADVICE = ", the file of a law, or one that is registered (docs/adding_a_law.md)"


class Law(Formula):
    """A fitted law: a formula with coefficients, which answers the questions below.

    A kind of law adds `name`, `formula` and `form` (see `Formula`), from which all of its answers follow. A question
    is a function of `planning`, whose first argument is the law.
    """

    # ------------------------------------------------------------------ questions

    optimal = optimal
    compute_optimal = compute_optimal
    plan = plan
    reach = reach
    speedup = speedup
    next_runs = next_runs

    # ------------------------------------------------------------------ files

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write `scaling_law.json` (form, full coefficients, conditions, draws) into `folder`; return its path."""
        return strict_json.write(Path(folder) / FILE_NAME, FORMAT, VERSION, self.to_dict())

    def push_to_hub(
        self, repo: str, *, token: str | None = None, private: bool = False, license: str | None = None
    ) -> str:
        """Push the law, its card and its figures to the main branch of the Hub repo "owner/name", in one commit.

        Returns the commit's sha. The card names a licence only if one is given. `hub.HubError` for what the Hub
        refuses.
        """
        return push_law(self, repo, token=token, private=private, license=license)

    @classmethod
    def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT:
        """Read a law from a folder, a scaling_law.json, or a Hub repo "owner/name" (only if no such path exists).

        Its form is data, of which nothing is executed. FileNotFoundError if none of these exists, ValueError if it
        holds no law, or a law of another kind.
        """
        law = law_from_dict(_read(source, revision), str(source))
        if not isinstance(law, cls):
            raise InputError(f"{source}: holds a {type(law).__name__}, not a {cls.__name__}")
        return law


def _read(source: str | Path, revision: str | None = None) -> Any:
    """Read the file of a law; FileNotFoundError where there is none."""
    path = local_path(source)
    try:
        content = path.read_bytes() if path.is_file() else hub.read_file(source, FILE_NAME, revision)
    except hub.NotFoundError as error:
        problem = f"no folder or Hub repo with a {FILE_NAME}, nor a law's file ({error})"
        raise FileNotFoundError(f"{source}: {problem}") from None
    return strict_json.loads(content, what=str(source), max_bytes=strict_json.MAX_FILE_BYTES)


LAWS: dict[str, type[Law]] = {}


def register(kind: type[LawT]) -> type[LawT]:
    """Register a class, as a decorator: `fit` and law files then know it by its `name`.

    ValueError if the name is missing or taken, or if the fields are not the coefficients of the form.
    """
    registered = LAWS.get(kind.name, kind)
    if not kind.name or (registered.__module__, registered.__qualname__) != (kind.__module__, kind.__qualname__):
        raise InputError(f"{kind.__name__}.name={kind.name!r} must be set and unique; taken: {sorted(LAWS)}")
    if kind.form.terms and sorted(kind.form.coefficients) != sorted(kind.coefficient_names()):
        fields = ", ".join(kind.coefficient_names())
        coefficients = ", ".join(kind.form.coefficients)
        raise InputError(f"{kind.__name__}: its fields ({fields}) must be those of its form ({coefficients})")
    LAWS[kind.name] = kind
    return kind


def register_form(name: str, data: Fields) -> type[Law]:
    """Make and register the kind of laws of a file's form; a later form of one name replaces an earlier.

    ValueError for a form that is invalid, and for a name that a class or another form of the package has.
    """
    form = Form.from_dict(data["form"])
    names = data["form"].get("coefficients") or form.coefficients
    formula = str(data.get("formula", name))
    for coefficient in form.coefficients:
        if hasattr(Law, coefficient):
            raise InputError(f"form: coefficient {coefficient!r} is the name of something that every law has")
    registered = LAWS.get(name)
    if registered is not None and (registered.form, [*registered.coefficient_names()]) == (form, [*names]):
        return registered
    if registered is not None and (registered.is_packaged or registered.__module__ != MODULE):
        raise InputError(f"law={name!r} is the name of another form, {registered.formula}: choose another")
    kind = make_dataclass(
        "".join(word.title() for word in name.split("_")) + "Law",
        [(str(coefficient), float) for coefficient in names],
        bases=(Law,),
        namespace={
            "name": name,
            "formula": formula,
            "form": form,
            "__doc__": str(data.get("about", formula)),
            "__module__": MODULE,
        },
        frozen=True,
        repr=False,
    )
    LAWS.pop(name, None)
    return register(kind)


def _kind_of(data: Any, source: str) -> type[Law]:
    """Return the kind of a law's file: of its form, or of its name."""
    data = strict_json.check_format(data, FORMAT, VERSION, source)
    name = str(data.get("law"))
    if data.get("form") is not None:
        if not NAME.fullmatch(name):
            raise InputError(f"{source}: law={shorten(name)} must be a name of letters, digits and _")
        return register_form(name, data)
    if name not in LAWS:
        raise InputError(f"{source}: {unknown('law=', data.get('law'), sorted(LAWS))}; or the file must have its form")
    return LAWS[name]


def choose_kind(kind: Any) -> type[Law]:
    """Return the kind of laws of a name, a class, a law, or the file of a law or of its form alone (as data).

    ValueError for anything else.
    """
    if isinstance(kind, Law):
        kind = type(kind)
    if isinstance(kind, type) and issubclass(kind, Law):
        return register(kind)
    if isinstance(kind, str) and kind in LAWS:
        return LAWS[kind]
    if isinstance(kind, str | Path) and ("/" in str(kind) or Path(kind).exists()):
        return _kind_of(_read(kind), str(kind))
    raise InputError(unknown("kind=", kind, sorted(LAWS)), ADVICE)


def law_from_dict(data: Any, source: str = "law") -> Law:
    """Read the content of a law's file; ValueError naming `source` and the field for anything else."""
    kind = _kind_of(data, source)
    options: Fields = {name: data[name] for name in ("experts", "draws") if data.get(name) is not None}
    try:
        if data.get("conditions") is not None:
            options["conditions"] = Conditions.from_dict(data["conditions"])
        if data.get("repetition") is not None:
            options["repetition"] = Repetition(**data["repetition"])
        if data.get("laws") is not None:
            options["laws"] = [law_from_dict(law, f"{source}: laws") for law in data["laws"]]
        return kind(**data["coefficients"], **options)
    except (KeyError, TypeError):
        raise InputError(f"{source}: coefficients must be exactly {list(kind.coefficient_names())}") from None
    except ValueError as error:
        raise InputError(f"{source}: {error}") from None

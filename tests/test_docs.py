"""The pages: every public name, the words they link, and what their blocks print."""

import contextlib
import doctest
import io
import json
import re
import runpy
from importlib import import_module
from pathlib import Path

import cases
import fits
import pytest

import skbayes_sym

DOCS = Path(__file__).parents[1] / "docs"
PACKAGE = Path(skbayes_sym.__file__).parent
PUBLIC = [
    "skbayes_sym", "skbayes_sym.callbacks", "skbayes_sym.datasets",
    "skbayes_sym.mcmc.samplers", "skbayes_sym.factorization.solvers", "skbayes_sym.inspection",
    "skbayes_sym.metrics", "skbayes_sym.model_selection", "skbayes_sym.models",
    "skbayes_sym.symmetry",
]  # fmt: skip

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="a checkout has the pages")


# The index repeats the names of the estimators, whose own pages are linked from api/estimators.
API = "api/[!i]*.rst"
PARTS = "parts.rst"


def documented(pages: str) -> list[str]:
    """Full names on pages, in their order: entries of summaries and lone data."""
    names, module, directive = [], "", ""
    texts = [page.read_text(encoding="utf-8") for page in sorted(DOCS.glob(pages))]
    for line in "\n".join(texts).splitlines():
        entry = re.fullmatch(r"\s+(\w+)", line)
        if found := re.match(r"\.\. ([\w:]+):: ?(.*)", line):
            directive, argument = found.groups()
            if directive == "currentmodule":
                module = argument
            elif directive == "py:data":
                names.append(f"{module}.{argument}")
        elif line and not line.startswith(" "):
            directive = ""
        elif entry and directive in {"autosummary", "py:data"}:
            names.append(f"{module}.{entry[1]}")
    return names


def public_names(module: str) -> set[str]:
    """``__all__``, or what a module without one defines."""
    found = import_module(module)
    own = [n for n, v in vars(found).items() if getattr(v, "__module__", "") == module]
    names = getattr(found, "__all__", [n for n in own if not n.startswith("_")])
    return {f"{module}.{name}" for name in names}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_stands_on_the_api_page_or_among_the_parts(module: str) -> None:
    """The root's functions for models and modules are documented where they are defined."""
    names = {*documented(API), *documented(PARTS)}
    aliases = {"align_modules", "compare_models", "merge_modules", "symmetry_of"}
    names |= {f"skbayes_sym.{name}" for name in aliases}
    assert public_names(module) - names == set()


def test_every_name_on_these_pages_exists_and_stands_there_once() -> None:
    promised = documented(API)
    assert 40 < len(promised) <= 70  # as many as one looks through
    names = [*promised, *documented(PARTS)]
    assert len(names) == len(set(names))
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(module), last), name


def test_the_page_of_an_estimator_documents_its_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    class_pages = import_module("class_pages")
    names = [name for name in skbayes_sym.__all__ if class_pages.is_estimator(name)]
    assert len(names) == 18
    for name in names:
        methods = dir(getattr(skbayes_sym, name))
        shown = class_pages.shown_methods(name, "skbayes_sym", methods)
        assert {"fit", "predict", "score", "get_params", "set_params"} <= set(shown), name
        assert ("predict_interval" in shown) == ("predict_interval" in methods), name


def test_the_api_index_lists_every_estimator() -> None:
    listed = [name.rpartition(".")[2] for name in documented("api/index.rst")]
    estimators = [name.rpartition(".")[2] for name in documented("api/estimators.rst")]
    assert sorted(listed) == sorted(estimators)


def test_which_estimator_names_every_estimator() -> None:
    page = (DOCS / "user_guide/which_estimator.rst").read_text(encoding="utf-8")
    advice = page.partition("How long it takes")[0]
    listed = [name.rpartition(".")[2] for name in documented("api/estimators.rst")]
    assert len(listed) == 18
    assert [name for name in listed if f"`{name}`" not in advice] == []


def folders() -> set[str]:
    return {
        ".".join(["skbayes_sym", *path.parent.relative_to(PACKAGE).parts])
        for path in PACKAGE.rglob("__init__.py")
    }


@pytest.mark.parametrize("folder", sorted(folders() - {"skbayes_sym"}))
def test_a_folders_map_names_its_files(folder: str) -> None:
    path = PACKAGE.joinpath(*folder.split(".")[1:])
    named = set(re.findall(r"\w+", import_module(folder).__doc__ or ""))
    inside = {p.stem for p in path.glob("*.py")} | {p.parent.name for p in path.glob("*/*.py")}
    assert inside - {"__init__"} - named == set()


@pytest.mark.parametrize("page", sorted((DOCS / "user_guide").glob("*.rst")), ids=lambda p: p.stem)
def test_readers_see_no_digits_that_are_left_open(page: Path) -> None:
    """An output that differs between machines is hidden, and a block of text shows one of them."""
    text = page.read_text(encoding="utf-8")
    outputs = re.findall(r"\.\. testoutput::\n((?:   :.*\n)*)\n((?:   .*\n|\n)+)", text)
    shown = [body for options, body in outputs if ":hide:" not in options]
    assert [body for body in shown if re.search(r"\d\.\.\.", body)] == []


def test_the_table_of_costs_names_what_exists() -> None:
    text = (DOCS / "contributing.rst").read_text(encoding="utf-8")
    table = text.partition("How to add something")[2].partition("A likelihood\n---")[0]
    for path in re.findall(r"``([a-z_]+/[\w/.]+)``", table):
        root = PACKAGE.parent if path.startswith("tests/") else PACKAGE
        assert (root / path).exists() or path == "tests/test_extension.py", path
    tables = set(re.findall(r"``([A-Z_]+)``", table))
    assert len(tables) > 8
    in_tests = {name for module in (cases, fits) for name in vars(module)}
    assert tables - in_tests <= {"OPERATIONS", "SAVED_CLASSES", "MEMBERS"}


def test_included_code_is_found() -> None:
    """`sphinx-build -W` fails on lines that an included file doesn't have."""
    n_lines = 0
    for page in DOCS.rglob("*.rst"):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"\.\. literalinclude:: (\S+)\n((?:   +:.*\n)+)", text)
        for name, options in blocks:
            code = (page.parent / name).read_text(encoding="utf-8")
            for line in re.findall(r":(?:start|end)-(?:at|before|after): (.+)", options):
                assert line in code, f"{page.name}: {line}"
                n_lines += 1
            for kind in re.findall(r":pyobject: (\w+)", options):
                assert f"class {kind}" in code, f"{page.name}: {kind}"
    assert n_lines > 1


def test_the_page_of_every_name_links_the_guide_page_that_explains_it() -> None:
    pages = runpy.run_path(str(DOCS / "guide_pages.py"))["PAGES"]
    names = [n.rpartition(".")[2] for n in documented(API) if ".datasets." not in n]
    assert set(names) == set(pages)
    for name, page in pages.items():
        text = (DOCS / f"user_guide/{page}.rst").read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", text), (name, page)
    for template in (DOCS / "_templates/autosummary").glob("*.rst"):
        text = template.read_text(encoding="utf-8")
        assert "/user_guide/{{ guide_pages[objname] }}" in text
        assert ".. minigallery:: {{ module }}.{{ objname }}" in text


def test_the_chooser_has_every_estimator() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_chooser.py"))
    on_map = {name for _, names in drawn["STEPS"] for name in names}
    page = (DOCS / "user_guide/which_estimator.rst").read_text(encoding="utf-8")
    known = {n for n in skbayes_sym.__all__ if hasattr(getattr(skbayes_sym, n), "fit")}
    assert on_map | set(re.findall(r"`(\w+)`", page)) >= known >= on_map


def test_names_on_the_cheat_sheet_exist() -> None:
    boxes = runpy.run_path(str(DOCS / "draw_cheat_sheet.py"))["BOXES"]
    code = [line for _, _, _, lines in boxes for line, _ in lines]
    others = {"GridSearchCV", "make_pipeline", "permutation_importance"}  # scikit-learn's
    modules = [import_module(name) for name in PUBLIC]
    owners = {
        "reg": skbayes_sym.PredictiveStackingRegressor,
        "clf": skbayes_sym.PredictiveStackingClassifier,
        "future": import_module("skbayes_sym.base.distributions").PredictiveDistribution,
        "student": import_module("skbayes_sym.student").Student,
    }
    n_names = 0
    for line in code:
        for name in re.findall(r"(?<![.\w])(\w+)\(|^(\w+Display)", line):
            called = "".join(name)
            known = any(hasattr(module, called) for module in modules)
            assert known or called in {*others, "print"}, line
            n_names += 1
        for owner, attribute in re.findall(r"(?<!\")\b(reg|clf|future|student)\.(\w+)", line):
            assert hasattr(owners[owner], attribute) or attribute.endswith("_"), line
            n_names += 1
    assert n_names > 30


def test_the_check_of_built_pages_finds_what_is_wrong(tmp_path: Path) -> None:
    """A page that is right in everything, and the same with one fault each."""
    check = runpy.run_path(str(DOCS / "check_pages.py"))["check"]
    good = (
        '<script src="_static/MathJax.js"></script><h1 id="top">A page</h1><img src="a.png">'
        '<a href="#top">up</a><a href="https://elsewhere/x">out</a><code>\\(x\\)</code>'
        '<span class="math">\\(x\\)</span>'
    )
    faults = {
        "no such anchor": good.replace("#top", "#bottom"),
        "no such file": good.replace("a.png", "b.png"),
        "no MathJax": good.replace("_static/MathJax.js", "a.png"),
        "MathJax from elsewhere": good.replace("_static/", "https://cdn/"),
        "raw TeX": good.replace("A page", "A page of \\(x\\)"),
    }
    for number, (fault, html) in enumerate({"": good, **faults}.items()):
        root = tmp_path / str(number)
        (root / "_static").mkdir(parents=True)
        (root / "a.png").touch()
        (root / "_static/MathJax.js").touch()
        (root / "page.html").write_text(html, encoding="utf-8")
        found, n_links, hosts = check(root)
        assert n_links == 4
        assert "elsewhere" in hosts
        assert len(found) == bool(fault), found
        assert not fault or fault in found[0]


BLOCK = re.compile(r"\s*\.\. [\w-]+(::|: begin)|.*::$")  # directives, and literal blocks


def prose(text: str) -> str:
    """A page's text outside of directives (tables among them), headings, and backticks."""
    lines, kept, skipped = text.splitlines(), [], -1
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= skipped:
            skipped = -1
        if BLOCK.match(line):
            skipped = indent
        if skipped < 0 and not re.match(r"[=-]{3}", below):
            kept.append(line)
    return re.sub(r"`[^`]*`", "", "\n".join(kept))


TERMS = {"nat": r"\bnats?\b", "ELBO": r"\bELBO\b", "evidence": r"\b[Ee]vidence\b",
         "log density": r"\b[Ll]og (?:predictive )?density\b"}  # fmt: skip


@pytest.mark.parametrize(
    "page", sorted([*DOCS.glob("user_guide/*.rst"), *DOCS.glob("reproduction/*.rst")]),
    ids=lambda path: path.stem,
)  # fmt: skip
def test_a_page_links_the_words_it_doesnt_explain(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for term, pattern in TERMS.items():
        linked = re.search(rf":term:`(?:[^`<]*<)?{term}s?[>`]", " ".join(text.split()))
        assert linked or page.stem == "glossary" or not re.search(pattern, prose(text)), term


def test_every_linked_term_is_in_the_glossary() -> None:
    glossary = (DOCS / "user_guide/glossary.rst").read_text(encoding="utf-8")
    terms = {term.lower() for term in re.findall(r"^   (\S.*)$", glossary, re.MULTILINE)}
    for page in DOCS.rglob("*.rst"):
        text = " ".join(page.read_text(encoding="utf-8").split())
        for label, target in re.findall(r":term:`([^`<]*?)(?:\s*<([^>`]*)>)?`", text):
            assert (target or label).lower() in terms, (page.name, target or label)


def test_the_step_of_each_method_is_as_its_code_has_it() -> None:
    text = (DOCS / "the_step.rst").read_text(encoding="utf-8")
    blocks = re.findall(r":caption: (\S+)\n\n((?:   .*\n|\n)+)", text)
    for path, block in blocks:
        code = {line.strip() for line in (DOCS.parent / path).read_text().splitlines()}
        assert {line.strip() for line in block.splitlines()} - code - {"..."} == set(), path
    assert len(blocks) >= 8


def test_the_numbers_behind_auto_are_on_their_page() -> None:
    """Every dataclass of policy, by the place where it is defined."""
    defined = {
        f"skbayes_sym.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}.{name}"
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"^class (\w+Defaults)\b", path.read_text(encoding="utf-8"), re.M)
    }
    page = (DOCS / "user_guide/auto.rst").read_text(encoding="utf-8")
    assert set(re.findall(r"^\.\. defaults:: (\S+)$", page, re.M)) == defined
    pytest.importorskip("docutils")
    table = runpy.run_path(str(DOCS / "defaults_tables.py"))["table"]
    text = "\n".join(table("skbayes_sym.bayesian_mlp.defaults.PoolDefaults"))
    assert "``min_gain = 0.85``\n     - Networks of one kind get weight" in text


def test_tables_of_immer_et_al_have_every_fitted_cell() -> None:
    pytest.importorskip("docutils")
    script = runpy.run_path(str(DOCS / "paper_tables.py"))
    stored = json.loads(script["CELLS"].read_text(encoding="utf-8"))["cells"]
    text = "\n".join(line for table in script["tables"]() for line in table)
    n_sizes = sum(len({fit["how"] for fit in cell["fits"]}) for cell in stored.values())
    assert len(re.findall(r"- [\d.]+ \([\d.]+\)$", text, re.MULTILINE)) == n_sizes > 30
    fits = [
        {"accuracy": 90.0, "log evidence": -100, "images": 100, "how": "100 images"},
        {"accuracy": 80.0, "log evidence": -50, "images": 100, "how": "100 images"},
    ]
    cell = {"paper": 97.84, "paper log evidence": -6000, "fits": fits}
    assert script["accuracy"](cell) == "85.0 (97.8)"
    assert script["evidence"](cell, "mnist") == "-0.75 (-0.10)"
    assert script["size"](cell) == "100 images, 2 seeds"
    other = {"accuracy": 70.0, "how": "50 images", "seeds": 3}
    parts = script["by_size"](cell | {"fits": [fits[0], other, fits[1]]})
    assert [script["size"](part) for part in parts] == ["100 images, 2 seeds", "50 images, 3 seeds"]


def blocks(page):
    """Code and what is printed after it (None: nothing is said), in order."""
    text = (DOCS.parent / page).read_text()
    found = []
    if page.endswith(".md"):
        pieces = re.findall(r"```(python|text)\n(.*?)```", text, re.DOTALL)
    else:
        pieces = re.findall(r"\.\. (testcode|testoutput)::\n(?:   :.*\n)?\n((?:   .*\n|\n)+)", text)
        pieces = [(kind, re.sub(r"(?m)^   ", "", body)) for kind, body in pieces]
    for kind, body in pieces:
        if kind in ("python", "testcode"):
            found.append((body, None))
        else:
            found[-1] = (found[-1][0], body)
    return found


PAGES = [
    "README.md", "docs/index.rst", "docs/user_guide/tutorial.rst", "docs/user_guide/stacking.rst",
    "docs/user_guide/tutorial_images.rst", "docs/user_guide/tutorial_ratings.rst",
    "docs/user_guide/ecosystem.rst",
]  # fmt: skip
NEEDS = {"ecosystem": ("mapie", "skpro", "sktime", "arviz_stats", "optuna", "shap", "botorch")}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.*the learned noise:UserWarning")
@pytest.mark.filterwarnings("ignore:.*beyond the dates of the training data:UserWarning")
@pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning")
def test_every_block_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    for name in ("pandas", *NEEDS.get(Path(page).stem, ())):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, expected in blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if expected is not None:
            flags = (
                doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )  # as in `sphinx-build -b doctest`
            matches = doctest.OutputChecker().check_output(expected, printed.getvalue(), flags)
            assert matches, printed.getvalue()
    assert names


def test_sentences_with_checked_numbers_stand_on_their_pages(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(DOCS))
    check_numbers = import_module("check_numbers")
    assert check_numbers.main(["text"]) == 0, capsys.readouterr().out
    one = check_numbers.NUMBERS[-1]._replace(sentence="{} sentences that no page has")
    monkeypatch.setattr(check_numbers, "NUMBERS", [one])
    assert check_numbers.main(["text"]) == 1

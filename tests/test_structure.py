"""The house: imports point one way, files are of a size to read, every example in a docstring is true."""

import ast
import doctest
import importlib
import re

import pytest

import rewards
from lab.files import ROOT

LAB = ROOT / "notebooks" / "lab"
PRODUCT = sorted([ROOT / "rewards.py", *(ROOT / "scoring").rglob("*.py"), *LAB.rglob("*.py")])
# What a module may import from: itself and what stands left of it. Rooms in one entry may use each other without cycles.
ORDER = [
    {"sandbox"},
    {"scoring"},
    {"rewards"},
    {"lab.files", "lab.setup"},
    {"lab.data", "lab.model"},
    {"lab.measure", "lab.train", "lab.read"},
    {"lab.show"},
    {"lab.page", "lab.export", "lab.scratch"},
    {"lab.make"},
]
MOST_LINES = 450


def module_name(path):
    parts = path.relative_to(LAB.parent if path.is_relative_to(LAB) else ROOT).with_suffix("").parts
    return ".".join(parts)


def imports(path):
    """The modules of this project that a file imports, anywhere in it."""
    names = {module_name(one) for one in PRODUCT} | {"sandbox"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names or alias.name.startswith("tests"))
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in names:
                    yield full
                elif node.module in names or node.module.startswith("tests"):
                    yield node.module


def room(name):
    return ".".join(name.split(".")[:2]) if name.startswith("lab") else name.split(".")[0]


def place(name):
    return next(i for i, rooms in enumerate(ORDER) if room(name) in rooms)


@pytest.mark.parametrize("path", PRODUCT, ids=module_name)
def test_imports_point_one_way_and_never_to_the_tests(path):
    own = module_name(path)
    if path.name == "__init__.py":
        return
    for name in imports(path):
        assert not name.startswith("tests"), f"{own} imports {name}"
        assert place(name) <= place(own), f"{own} imports {name}, which stands behind it"


def test_no_module_imports_itself_through_others():
    found = {module_name(path): set(imports(path)) for path in PRODUCT}

    def reach(name, seen):
        for other in found.get(name, ()):
            if other not in seen:
                seen.add(other)
                reach(other, seen)
        return seen

    cycles = [name for name in found if name in reach(name, set())]
    assert not cycles


def test_notebooks_import_nothing_from_the_tests():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert not re.search(r"(?:from|import) tests", path.read_text(encoding="utf-8")), path.name


@pytest.mark.parametrize("path", PRODUCT, ids=module_name)
def test_a_module_is_of_a_size_to_read(path):
    most = 800 if path.name == "rewards.py" else MOST_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


WITH_EXAMPLES = [path for path in PRODUCT if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_the_examples_in_docstrings_are_true(path):
    scoring = path.is_relative_to(ROOT / "scoring")  # their examples use the rewards
    module = importlib.import_module(module_name(path))
    found = doctest.testmod(
        module, extraglobs={name: getattr(rewards, name) for name in rewards.__all__} if scoring else None
    )
    assert found.attempted and not found.failed

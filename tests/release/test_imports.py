"""What `import dpdist` costs, and that public names are what type checkers read."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

import dpdist

HEAVY = ("numpy", "pandas", "scipy", "pyarrow", "zarr", "sqlalchemy", "dask", "pydantic", "matplotlib", "xarray")


def loaded(statement: str) -> set[str]:
    """Heavy libraries that a process has after a statement."""
    text = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    return set(found.stdout.split())


@pytest.mark.quick
def test_importing_the_package_and_help_of_a_command_load_no_heavy_library() -> None:
    """Control: a name that is asked for loads what it needs."""
    assert loaded("import dpdist, dpdist.cli.main") == set()
    assert "pydantic" in loaded("from dpdist import Job")


def declared() -> dict[str, tuple[str, str]]:
    """Of every public name: the module that type checkers read it from, and its name there."""
    tree = ast.parse(Path(dpdist.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}


def test_public_names_are_those_that_are_declared() -> None:
    assert sorted(declared()) == sorted(dpdist.__all__) == sorted(dir(dpdist))


@pytest.mark.parametrize("name", dpdist.__all__)
def test_a_public_name_is_what_type_checkers_read(name: str) -> None:
    module, there = declared()[name]
    assert getattr(dpdist, name) is getattr(import_module(module), there)


def test_publish_is_the_verb_whatever_was_imported_of_the_folder() -> None:
    import_module("dpdist.publish.opened")
    assert dpdist.publish is import_module("dpdist.release").publish


def unresolved(text: str) -> set[str]:
    """Names that a text imports from the package, and that are not there; also in programs that are kept in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nfrom dpdist" in node.value:
            with suppress(SyntaxError):
                found |= unresolved(dedent(node.value))
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "dpdist":
            found |= {f"{node.module}.{alias.name}" for alias in node.names if not there(str(node.module), alias.name)}
    return found


def there(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or import_module(f"{module}.{name}") is not None
    except ModuleNotFoundError as missing:
        return not str(missing.name).startswith("dpdist")


@pytest.mark.long
def test_every_name_that_is_imported_from_the_package_is_there() -> None:
    """Also in studies and examples that no test runs. Control: a name and a module that are gone."""
    assert unresolved("from dpdist.publish.folder import REACH") == {"dpdist.publish.folder.REACH"}
    assert unresolved("from dpdist.gone import name") == {"dpdist.gone.name"}
    assert unresolved(repr("\n" + "from dpdist.gone import name")) == {"dpdist.gone.name"}
    root = Path(__file__).parents[2]
    files = [path for folder in ("dpdist", "tests", "docs") for path in (root / folder).rglob("*.py")]
    assert len(files) > 400
    found = {str(path.relative_to(root)): unresolved(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_an_unknown_name_is_refused_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'dpdist' has no attribute 'nothing'"):
        dpdist.nothing  # noqa: B018


def eager(text: str, library: str = "scipy") -> list[str]:
    """Imports at the top of a module that load parts of a library, which loads them itself at their first use."""
    found = list[str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == library:
            found.append(str(node.module))
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith(f"{library}.")]
    return found


def test_scipy_loads_its_parts_at_their_first_use() -> None:
    """Control: what would load one at once."""
    assert eager("from scipy.special import ndtri\nimport scipy.stats\nfrom scipy import sparse\nimport scipy") == [
        *("scipy.special", "scipy.stats", "scipy")
    ]
    root = Path(dpdist.__file__).parent
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = {path: eager(text) for path, text in texts.items() if "scipy." in text or "from scipy" in text}
    assert len(found) > 10
    assert {path: parts for path, parts in found.items() if parts} == {}


HEAVIEST = {"matplotlib", "xlsxwriter", "dask", "distributed", "opendp", "numba", "zarr", "xarray", "sqlalchemy", "obstore"}
OF_SCIPY = {"scipy.special", "scipy.sparse", "scipy.stats", "scipy.linalg", "scipy.optimize"}
MOST_MODULES = 1_300
"""Modules of a command that only looks: about 1,150 now. There were 1,750, and half of the time was theirs."""
MOST_OF_A_RUN = 2_100
"""Modules of a run in one process: about 2,045 now. There were 2,170."""
TELL = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=open({told!r}, "w")))
sys.argv = ["dpdist", *{arguments!r}]
from dpdist.cli.main import main
main()
"""


def modules_of(folder: Path, *arguments: str) -> set[str]:
    """Modules that a command has imported at its end."""
    told = folder / "modules"
    text = TELL.format(told=str(told), arguments=arguments)
    subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, check=True, timeout=240)
    return set(told.read_text().split())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder with a finished run, `work`, and the modules of the command that made it."""
    folder = tmp_path_factory.mktemp("ran")
    return folder, modules_of(folder, "run", "doctorates", "-w", "work", "--set", "runtime.executor=serial")


def test_a_run_imports_only_what_it_uses(ran: tuple[Path, set[str]]) -> None:
    """Control: it draws, and stores draws, so it has the libraries for that."""
    _, modules = ran
    assert len(modules) < MOST_OF_A_RUN
    assert "prometheus_client" not in modules
    assert (
        modules & (HEAVIEST | OF_SCIPY) & {"matplotlib", "dask", "opendp", "xarray", "sqlalchemy", "scipy.stats"} == set()
    )
    assert {"numba", "zarr", "scipy.special"} <= modules


@pytest.mark.parametrize(
    "command",
    [("validate", "doctorates"), pytest.param(("plan", "doctorates"), marks=pytest.mark.long), ("report", "work")],
)
def test_a_command_that_looks_imports_little(ran: tuple[Path, set[str]], command: tuple[str, str]) -> None:
    """Control: the evaluation, which the custodian asks for, judges by laws of scipy."""
    folder, of_the_run = ran
    modules = modules_of(folder, *command)
    assert modules & (HEAVIEST | OF_SCIPY) == set()
    assert len(modules) < MOST_MODULES < len(of_the_run)
    if command[0] == "report":
        assert "scipy.special" in modules_of(folder, *command, "--confidential")

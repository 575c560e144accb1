"""Mechanisms of other distributions: one is built, installed and released from; others are refused by their names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from small_jobs import CURRENT, Said, parsed, said
from small_runs import captured

import dpdist
from dpdist.core import plugins
from dpdist.core.errors import JobError
from dpdist.core.plugins import Refused
from dpdist.core.records import Floats
from dpdist.engine.protocol import Measurement
from dpdist.job import Job
from dpdist.job.families import MODELS
from dpdist.job.specs import SPECS
from dpdist.mechanisms.parts import Incomplete, builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.mechanisms.stratum_sums import Defined, LossExceeded
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Strict
from dpdist.privacy.queries import Moved, NoisyQuery
from dpdist.testing import check_family, check_mechanism
from dpdist.testing.answers import problems_of_answers, problems_of_stated_noise
from dpdist.testing.losses import problems_of_scale
from dpdist.testing.small import survey

EXAMPLE = Path(__file__).parents[1] / "plugin_example"
ORIGIN = {"distribution": "dpdist-counts", "version": "1.2.0"}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for installed distributions, with the example, built and installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(EXAMPLE)], check=True, timeout=300)
    return folder


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Entry points are read anew, and the modules of plug-ins are forgotten afterwards."""
    before = set(sys.modules)
    plugins.declared.cache_clear()
    yield monkeypatch
    plugins.declared.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(("dpdist_counts", "faulty")):
            del sys.modules[name]


@pytest.fixture
def installed(site: Path, fresh: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    fresh.syspath_prepend(str(site))
    return fresh


def counts_job(name: str = "yes_no_counts", **changes: object) -> Said:
    """A small job of an outcome with two values."""
    job = said("laplace_strict", "substitution", "cell_sums")
    columns = {name: job["columns"][name] for name in ("field", "sex")}
    columns["voted"] = {"bounds": [0, 1], "codes": {"no": 0, "yes": 1}}
    tables = [{"name": "t", "by": ["field", "sex"], "margins": True, "statistics": ["count", {"mean": "voted"}]}]
    mine = {"columns": columns, "outcome": "voted", "survey": {}, "tables": tables, "mechanism": {"name": name}}
    return job | mine | changes


def test_a_release_of_an_installed_plugin_says_whose_it_is(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    survey(1).to_parquet(tmp_path / CURRENT)
    job = parsed(counts_job(input={"path": str(tmp_path / CURRENT)}))
    assert "yes_no_counts, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    assert job.identity["mechanism.third_party.version"] == "1.2.0"
    release = dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement = json.loads((public / "statement.json").read_text())
    assert statement["mechanism"]["third_party"] == ORIGIN
    assert any("third-party: dpdist-counts 1.2.0" in text for text in statement["assumptions"])
    assert statement["guarantee"] == "strict"
    assert json.loads((public / "manifest.json").read_text())["third_party"] == ORIGIN
    figures = pq.read_table(public / "measurements.parquet").to_pandas()
    assert set(figures["statistic"]) == {"zeros", "ones"}
    assert len(release.tables["t"]) == 36
    assert dpdist.open_release(tmp_path / "work").statement["mechanism"]["third_party"] == ORIGIN


def test_an_installed_plugin_keeps_the_contract_of_noise_and_faults_are_told(
    installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Control: distances that are stated as an eighth, and exact counts beside noisy ones."""
    survey(1).to_parquet(tmp_path / CURRENT)
    case = captured("yes_no_counts", counts_job(), tmp_path, tmp_path / "work")
    assert problems_of_scale("it", case) == []
    assert problems_of_answers("it", case) == []
    assert problems_of_stated_noise("it", case) == []
    mechanism = mechanism_of(case.job)
    query = sys.modules[type(mechanism).__module__]
    right = query.counts
    with installed.context() as patch:
        scale = case.model.scale / 8  # type: ignore[attr-defined]
        patch.setattr(query, "scale_of", lambda _: scale)
        patch.setattr(query, "counts", lambda _, times=1: replace(_eighth(right(scale, times)), scale=scale))
        (line,) = problems_of_scale("it", case)
        assert line.startswith("it: two neighbouring files cost 96, and the job's epsilon is 12: compare the scale")
        assert problems_of_stated_noise("it", case) != []
    exact = list[Floats]()
    with installed.context() as patch:
        patch.setattr(Defined, "sums", _kept(Defined.sums, exact))
        patch.setattr(query, "Draws", lambda values: Draws({"counts": values["counts"] * 0 + exact[-1]}))
        lines = problems_of_answers("it", case)
    assert any("it takes exact sums" in line for line in lines)
    assert "it: no noisy answer changes set 1: it is released without noise" in lines


def _eighth(query: NoisyQuery) -> NoisyQuery:
    return replace(query, moved=Moved(*(distance / 8 for distance in query.moved)))


def _kept(sums: Callable[..., Measurement], exact: list[Floats]) -> Callable[..., Measurement]:
    """The same queries; `exact` is told of their sums without noise."""

    def keeping(self: Defined, values: Floats, *rest: Any) -> Measurement:
        exact.append(values)
        return sums(self, values, *rest)

    return keeping


def test_the_command_line_runs_a_plugin_and_its_schema_lists_it(site: Path, tmp_path: Path) -> None:
    """Control: without the distribution, neither knows it."""
    survey(1).to_parquet(tmp_path / CURRENT)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(counts_job()))

    def command(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
        told = [sys.executable, "-m", "dpdist", *arguments]
        environment = {"PYTHONPATH": path, "PATH": "", "HOME": str(tmp_path)}
        return subprocess.run(told, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=environment)

    assert "yes_no_counts" in command("schema", path=str(site)).stdout
    assert "yes_no_counts" not in command("schema", path="").stdout
    ran = command("run", "job.yaml", "-w", "work", "--set", "runtime.executor=serial", path=str(site))
    assert ran.returncode == 0, ran.stderr
    without = command("validate", "job.yaml", path="")
    assert without.returncode == 2
    assert "'yes_no_counts' is not known" in without.stdout + without.stderr


@pytest.mark.parametrize("name", ["yes_no_counts", "capped_totals"])
@pytest.mark.parametrize("budget", [{"adjacency": "add_remove"}, {"adjacency": "substitution", "exchange": "anywhere"}])
def test_a_model_without_recounted_takes_no_noisy_counts_and_nothing_is_spent(
    name: str, budget: Said, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Control: with the method, the job has a plan."""
    survey(1).to_parquet(tmp_path / CURRENT)
    weight = {"columns": counts_job()["columns"] | {"weight": {"bounds": [1, 100], "outside": "clip"}}}
    weighted = {**weight, "survey": {"weight": "weight"}} if name == "capped_totals" else {}
    changes = {"budget": {"epsilon": "12", **budget}, "predictors": {"protect": {"epsilon": "1"}}, "strata": []}
    job = parsed(counts_job(name, input={"path": str(tmp_path / CURRENT)}, **weighted, **changes))
    for act in (lambda: dpdist.plan(job), lambda: dpdist.run(job, tmp_path / "work")):
        with pytest.raises(JobError, match=rf"predictors: '{name}'(.|\n)*recounted(.|\n)*leave predictors out") as refusal:
            act()
        assert "dpdist_counts" in str(refusal.value)
    assert not (tmp_path / "work" / "public").exists()
    installed.setattr(builder_of(parsed(counts_job(name, **weighted))), "recounted", lambda *_: None, raising=False)
    assert "strict" in str(dpdist.plan(job))


def test_a_plugin_is_loaded_only_where_a_job_names_it(installed: pytest.MonkeyPatch) -> None:
    parsed(said("laplace_strict", "substitution", "cell_sums"))
    assert not any(name.startswith("dpdist_counts") for name in sys.modules)
    assert plugins.declared.cache_info().currsize == 0
    parsed(counts_job())
    assert "dpdist_counts.spec" in sys.modules
    assert "dpdist_counts.query" not in sys.modules


def test_a_wrong_key_of_a_plugin_has_a_remedy(installed: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match=r"mechanism\.fallbck: unknown key(.|\n)*did you mean 'fallback'"):
        parsed(counts_job(mechanism={"name": "yes_no_counts", "fallbck": "refuse"}))
    with pytest.raises(JobError, match="did you mean 'yes_no_counts'"):
        parsed(counts_job("yes_no_count"))


SPEC = """
from typing import ClassVar, Literal
from pydantic import Field
from dpdist.job.mechanism import Noisy
class Faulty(Noisy):
    name: Literal["{name}"] = Field(description="a fault")
    {contract}
    package: ClassVar[str] = "faulty"
    counts_records: ClassVar[bool] = True
    def guarantee(self, job):
        return "strict"
"""
CONTRACT = "CONTRACT: ClassVar[int] = {}"
FAULTS = {
    "a broken import": (
        "faulty",
        "import not_there",
        "imported (ModuleNotFoundError: No module named 'not_there')",
    ),
    "another contract": ("faulty", SPEC.format(name="faulty", contract=CONTRACT.format(2)), "is written for contract 2"),
    "no contract": ("faulty", SPEC.format(name="faulty", contract=""), "states no CONTRACT"),
    "another name": ("faulty", SPEC.format(name="other", contract=CONTRACT.format(1)), "has another name in its class"),
    "no specification": ("faulty", "class Faulty:\n    CONTRACT = 1", "is no class derived from MechanismSpec"),
    "a name of dpdist": (
        "laplace_strict",
        SPEC.format(name="laplace_strict", contract=CONTRACT.format(1)),
        "has the name of a member of dpdist",
    ),
}


def install(folder: Path, name: str, text: str, distribution: str = "faulty", group: str = "dpdist.mechanisms") -> None:
    """Puts a distribution with one module into a folder, as an installer leaves it."""
    (folder / "faulty.py").write_text(text)
    info = folder / f"{distribution}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = faulty:Faulty\n")
    invalidate_caches()


@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_plugin_is_refused_by_name_and_all_else_works(
    what: str, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, text, reason = FAULTS[what]
    install(tmp_path, name, text)
    installed.syspath_prepend(str(tmp_path))
    members, refusals = SPECS.usable()
    assert list(members) == ["capped_totals", "yes_no_counts"]
    (refusal,) = refusals
    assert f"plug-in '{name}' of faulty 0.1 (faulty:Faulty)" in str(refusal)
    assert reason in str(refusal)
    assert parsed(counts_job()).mechanism.name == "yes_no_counts"
    assert parsed(said("laplace_strict", "substitution", "cell_sums")).mechanism.package.startswith("dpdist.")
    if name not in SPECS:
        with pytest.raises(JobError, match=r"mechanism\.name: plug-in 'faulty' of faulty 0\.1"):
            parsed(counts_job(name))


def test_two_plugins_of_one_name_are_refused(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, "yes_no_counts", "")
    installed.syspath_prepend(str(tmp_path))
    assert list(SPECS.usable()[0]) == ["capped_totals"]
    with pytest.raises(Refused, match=r"several plug-ins have one name: .*dpdist-counts 1\.2\.0.* and .*faulty 0\.1"):
        SPECS.plugged_in("yes_no_counts")


def test_a_promise_below_its_loss_and_rounds_of_its_own_are_refused(installed: pytest.MonkeyPatch) -> None:
    """Control: as it is, the promise is what its queries lose."""
    job = parsed(counts_job())
    mechanism = mechanism_of(job)
    assert mechanism.promise(job).total.epsilon == job.budget.epsilon  # type: ignore[union-attr]
    kind = type(mechanism)
    right = kind.queries  # type: ignore[attr-defined]
    with installed.context() as patch:
        patch.setattr(kind, "queries", lambda *given: 2 * right(*given))
        with pytest.raises(LossExceeded, match="lose ε = 24, and the job has 12"):
            mechanism.promise(job)
    with installed.context() as patch:
        stated = kind.promised  # type: ignore[attr-defined]
        less = Strict(job.budget.adjacency, Fraction(3))
        patch.setattr(kind, "promised", lambda self, job, settings, total: stated(self, job, settings, less))
        with pytest.raises(LossExceeded, match="promises ε = 3, and its queries lose 12"):
            mechanism.promise(job)
    installed.setattr(kind, "protect", lambda *_: None)
    with pytest.raises(Incomplete, match=r"plug-in 'yes_no_counts' of dpdist-counts 1\.2\.0 .* not held to its queries"):
        mechanism_of(job)


def geometric_job(family: str = "geometric", **changes: object) -> Said:
    """A small job of the example's family, without Markov chains."""
    return said("weighted", "zero_out", "poisson") | {"model": {"family": family}} | changes


def test_a_family_of_a_plugin_is_released_from_and_named(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Control: a family of dpdist is not called third-party."""
    survey(1).to_parquet(tmp_path / CURRENT)
    job = parsed(geometric_job(input={"path": str(tmp_path / CURRENT)}))
    assert "family: geometric, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    assert job.identity["model.third_party.version"] == "1.2.0"
    release = dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement = json.loads((public / "statement.json").read_text())
    assert statement["model"]["third_party"] == ORIGIN
    assert "third_party" not in statement["mechanism"]
    assert any("family 'geometric' is third-party: dpdist-counts 1.2.0" in text for text in statement["assumptions"])
    assert json.loads((public / "manifest.json").read_text())["third_party_family"] == ORIGIN
    table = release.tables["t"].set_index(["field", "statistic", "estimator"])["estimate"]
    for field, mean in survey(1).groupby("field")["visits"].mean().items():
        assert table[field, "mean", "parameters"] == pytest.approx(mean, rel=0.3)
    assert dpdist.open_release(tmp_path / "work").statement["model"]["third_party"] == ORIGIN
    assert parsed(geometric_job("poisson")).family_origin == {}


def test_a_family_of_a_plugin_passes_the_check_and_is_in_the_schema(installed: pytest.MonkeyPatch) -> None:
    """Control: a name that no distribution has."""
    check_family("geometric")
    assert "geometric" in json.dumps(Job.model_json_schema())
    with pytest.raises(AssertionError, match="geometrc: no entry point has this name"):
        check_family("geometrc")
    with pytest.raises(JobError, match="did you mean 'geometric'"):
        parsed(geometric_job("geometrc"))


@pytest.mark.usefixtures("installed")
def test_a_clamp_of_a_family_with_a_closed_form_alone_is_refused_with_other_mechanisms() -> None:
    with pytest.raises(
        JobError, match=r"'geometric' has a closed form alone(.|\n)*take weighted, weighted_e or unweighted"
    ):
        parsed(geometric_job(mechanism={"name": "censor_uw"}))


MUTATED_FAMILIES = {
    "a density of another mass": ("np.log(draws", "2.0 * np.log(draws", "its density has the mass"),
    "weights that are ignored": (
        "(records, alpha, records.outcome)",
        "(records, 0 * alpha + 1, records.outcome)",
        "weight of 0",
    ),
    "another mean": ("mean = low", "mean = 1.0 + low", "simulate has another mean than expect"),
    "no public bounds": ("np.clip(y, *whole(self.outcome_bounds))", "y", "simulate leaves the public bounds"),
    "no density": ("def tiles", "def pieces", "NotImplementedError"),
}


@pytest.mark.parametrize("what", MUTATED_FAMILIES)
def test_a_mutated_family_fails_the_check(what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right, wrong, line = MUTATED_FAMILIES[what]
    mutated(site, fresh, tmp_path, "geometric.py", right, wrong)
    with pytest.raises(AssertionError, match=line):
        check_family("geometric")


FAMILY = """
from dpdist.models.poisson import Poisson
from dpdist.job.families import COUNT, FamilyFacts
class Faulty(Poisson):
    {contract}
    {facts}
"""
FACTS = "facts = FamilyFacts('a law', COUNT, False, False, ('{}',))"
FAULTY_FAMILIES = {
    "a broken import": ("faulty", "import not_there", "cannot be imported"),
    "another contract": ("faulty", FAMILY.format(contract="CONTRACT = 2", facts=""), "is written for contract 2"),
    "no facts": ("faulty", FAMILY.format(contract="CONTRACT = 1", facts=""), "is no class with facts"),
    "chains": ("faulty", FAMILY.format(contract="CONTRACT = 1", facts=FACTS.format("stan")), "has other samplers"),
    "no draws": ("faulty", FAMILY.format(contract="CONTRACT = 1", facts=FACTS.format("grid")), "has no draw_on_grid"),
    "a name of dpdist": ("poisson", FAMILY.format(contract="CONTRACT = 1", facts=""), "has the name of a member of dpdist"),
}


@pytest.mark.parametrize("what", FAULTY_FAMILIES)
def test_a_faulty_family_is_refused_by_name_and_all_else_works(
    what: str, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, text, reason = FAULTY_FAMILIES[what]
    install(tmp_path, name, text, group="dpdist.families")
    installed.syspath_prepend(str(tmp_path))
    members, (refusal,) = MODELS.usable()
    assert list(members) == ["geometric"]
    assert f"plug-in '{name}' of faulty 0.1 (faulty:Faulty)" in str(refusal)
    assert reason in str(refusal)
    assert parsed(geometric_job()).family == "geometric"
    if name == "faulty":
        with pytest.raises(JobError, match=r"model\.family: plug-in 'faulty' of faulty 0\.1"):
            parsed(geometric_job(name))
    assert parsed(geometric_job("poisson")).family == "poisson"


def mutated(site: Path, patch: pytest.MonkeyPatch, folder: Path, path: str, right: str, wrong: str) -> None:
    """Imports a copy of the example from now on, in one module of which a text is replaced."""
    shutil.copytree(site, folder / "site")
    file = folder / "site" / "dpdist_counts" / path
    text = file.read_text()
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong))
    patch.syspath_prepend(str(folder / "site"))
    invalidate_caches()


MUTATIONS = {
    "half of the scale": ("sensitivity", "return UNIT * OF_ONE", "return UNIT / 2 * OF_ONE", "LossExceeded"),
    "a distance stated as an eighth": ("sensitivity", "OF_ONE.times(UNIT), scale", "OF_ONE, scale / UNIT", "cost"),
    "no clip": ("query", "np.minimum(records.weight, self.cells.cap)", "records.weight", "cost 24"),
    "sums beyond their domain": ("query", "weights=weight,", "weights=2.0 * weight,", "cost 24"),
    "a promise below its loss": (
        "query",
        "per_set(total, job)",
        "Strict(job.budget.adjacency, job.epsilon_per_set / 4)",
        "promises",
    ),
    "a query asked twice": (
        "query",
        "noisy = yield defined.sums(exact, query, number)",
        "noisy = ((yield defined.sums(exact, query, number)) + (yield defined.sums(exact, query, -number))) / 2",
        "exceeds the promise",
    ),
    "one noise for two sets": ("query", "sums(exact, query, number)", "sums(exact, query, 1)", "give each a number"),
    "exact sums": ("query", 'Draws({"sums": noisy[None]})', 'Draws({"sums": exact[None]})', "takes exact sums"),
    "records in post": (
        "post",
        "from dpdist.job import Job\n",
        "from dpdist.confidential.records import Records\nfrom dpdist.job import Job\n",
        "move that part to query.py",
    ),
    "missing words": ("post", 'density="noisy', 'density="" and "noisy', "WORDS.density"),
    "noise that the statement does not name": ("query", "has discrete Laplace noise", "has noise", "does not name it"),
    "another scale in the measurements": (
        "post",
        "[model.scale] * 2",
        "[2 * model.scale] * 2",
        "measurements.parquet states",
    ),
    "weights without bounds": (
        "spec",
        "    def contradictions",
        "    def clips(self, job: JobView) -> bool:\n        return False\n\n    def contradictions",
        "a weight without public bounds",
    ),
}
"""Of a strict mechanism: a module, a text in it, a faulty one in its place, and what the check says."""


def test_the_example_passes_the_check_of_mechanisms(installed: pytest.MonkeyPatch) -> None:
    """It says under which adjacencies no small job is accepted: sizes are secret there, and need noise of their own."""
    for name in ("yes_no_counts", "capped_totals"):
        assert check_mechanism(SPECS.named(name)) == ("add_remove, same_x", "substitution, anywhere")


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_mutated_mechanism_fails_the_check(what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, right, wrong, line = MUTATIONS[what]
    mutated(site, fresh, tmp_path, f"capped_totals/{module}.py", right, wrong)
    with pytest.raises(AssertionError, match=line):
        check_mechanism(SPECS.named("capped_totals"))

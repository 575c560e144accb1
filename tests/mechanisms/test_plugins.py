"""Mechanisms of other distributions: one is built, installed and released from; others are refused by their names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from importlib import import_module, invalidate_caches
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import invoke
from public_files import statement_of
from small_jobs import CURRENT, EARLIER, Said, parsed, said
from small_runs import captured

import dpdist
from dpdist.core import plugins
from dpdist.core.errors import DataError, JobError, ProblemsError, WorkspaceError
from dpdist.core.plugins import Members, PluginRefused
from dpdist.core.records import Floats
from dpdist.engine.protocol import Measurement
from dpdist.job import MODELS, SPECS, WEIGHT_RULES, Job
from dpdist.job.statistics import KINDS as STATISTICS
from dpdist.mechanisms.parts import Incomplete, builder_of
from dpdist.mechanisms.promises import Defined, LossExceeded
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Moved, NoisyQuery, Strict
from dpdist.survey.source import READERS, open_file
from dpdist.testing import check_family, check_mechanism, check_reader, check_statistic, check_weight_rule, readers
from dpdist.testing.losses import problems_of_scale
from dpdist.testing.mechanisms import problems_of_answers, problems_of_stated_noise, survey

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
    job = said("tables", "substitution", "residuals")
    del job["reference"]
    columns = {name: job["columns"][name] for name in ("field", "sex")}
    columns["voted"] = {"bounds": [0, 1], "codes": {"no": 0, "yes": 1}}
    tables = [{"name": "t", "by": ["field", "sex"], "margins": True, "statistics": ["count", {"mean": "voted"}]}]
    mine = {"columns": columns, "outcome": "voted", "survey": {}, "tables": tables, "mechanism": {"name": name}}
    return job | mine | changes


def geometric_job(family: str = "geometric", **changes: object) -> Said:
    """A small job of the example's family, without Markov chains."""
    return said("weighted", "zero_out", "poisson") | {"model": {"family": family}} | changes


def rule_job(rule: object = "power", **changes: object) -> Said:
    """A small job of the example's weight rule."""
    return said("weighted", "zero_out", "lognormal") | {"mechanism": {"name": "weighted", "weights": rule}} | changes


def statistic_job(name: str = "contribution", **changes: object) -> Said:
    """A small job with a statistic of an outcome, in the example's form where it is the example's."""
    job = said("tables", "substitution", "residuals")
    (outcome,) = [job["outcome"]] if isinstance(job["outcome"], str) else job["outcome"][:1]
    written = {name: outcome} | ({"across": ["sex"]} if name == "contribution" else {})
    tables = [{"name": "t", "by": ["field", "sex"], "margins": True, "statistics": [written]}]
    return job | {"tables": tables} | changes


def test_a_release_of_an_installed_plugin_says_whose_it_is(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    survey(1).to_parquet(tmp_path / CURRENT)
    job = parsed(counts_job(input={"path": str(tmp_path / CURRENT)}))
    assert "yes_no_counts, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    assert job.identity["mechanism.third_party.version"] == "1.2.0"
    release = dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement = statement_of(public)
    assert statement["mechanism"]["third_party"] == ORIGIN
    assert any("third party (dpdist-counts 1.2.0)" in text for text in statement["assumptions"])
    assert statement["guarantee"] == "strict"
    assert json.loads((public / "manifest.json").read_text())["third_party"] == ORIGIN
    figures = pq.read_table(public / "measurements.parquet").to_pandas()
    assert set(figures["statistic"]) == {"zeros", "ones"}
    assert len(release.tables["t"]) == 36
    assert dpdist.open_release(tmp_path / "work").statement["mechanism"]["third_party"] == ORIGIN


LIES = """    @property
    def third_party(self):
        return {}

    def published(self, job):
        return {"name": "tables", "third_party": {"distribution": "dpdist", "version": "9"}}

    def guarantee("""


def test_a_plugin_that_says_it_is_of_dpdist_is_named_all_the_same(
    site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutated(site, fresh, tmp_path, "spec.py", "    def guarantee(", LIES)
    survey(1).to_parquet(tmp_path / CURRENT)
    job = parsed(counts_job(input={"path": str(tmp_path / CURRENT)}))
    assert job.identity["mechanism.third_party.version"] == "1.2.0"
    assert "yes_no_counts, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement = statement_of(public)
    assert statement["mechanism"] == {"name": "yes_no_counts", "third_party": ORIGIN}
    assert any("third party (dpdist-counts 1.2.0)" in text for text in statement["assumptions"])
    assert json.loads((public / "manifest.json").read_text())["third_party"] == ORIGIN


def test_a_plugin_that_makes_another_mechanism_of_its_section_is_refused(
    site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    validator = """    @model_validator(mode="wrap")
    @classmethod
    def _other(cls, value, handler):
        from dpdist.job import SPECS

        return SPECS["tables"](name="tables")

    def guarantee("""
    file = mutated(site, fresh, tmp_path, "spec.py", "    def guarantee(", validator)
    file.write_text(file.read_text().replace("import Field", "import Field, model_validator"))
    with pytest.raises(JobError, match=r"'yes_no_counts' of dpdist-counts 1\.2\.0 .* makes a section of another mechanism"):
        parsed(counts_job())


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


def test_the_command_line_runs_a_plugin_and_its_schema_lists_it(
    site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Control: without the distribution, neither knows it."""
    survey(1).to_parquet(tmp_path / CURRENT)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(counts_job()))

    def said_by(*command: str) -> tuple[int, str]:
        done = invoke(*command)
        return done.exit_code, " ".join(done.output.split())

    code, refusal = said_by("validate", str(tmp_path / "job.yaml"))
    assert code == 2
    assert "'yes_no_counts' is not known" in refusal
    assert "yes_no_counts" not in said_by("schema")[1]
    fresh.syspath_prepend(str(site))
    plugins.declared.cache_clear()
    assert "yes_no_counts" in said_by("schema")[1]
    fresh.chdir(tmp_path)
    assert said_by("run", "job.yaml", "-w", "work", "--set", "runtime.executor=serial")[0] == 0


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
    parsed(said("tables", "substitution", "residuals"))
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


class Kind(NamedTuple):
    """A kind of plug-in: its registry, the example's members, a class, a name of dpdist, and jobs that name a member."""

    members: Members[Any]
    examples: list[str]
    text: str
    """A module with a class `Faulty` of this kind; {contract} and {name} are left open."""
    no_member: str
    """The refusal of a class of another kind."""
    of_dpdist: str
    named: Callable[[str, Path], object]
    """Names a member in a job, or opens a file that it reads, in a folder."""
    key: str
    """What an error names as its place."""


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
FAMILY = """
from dpdist.models.negative_binomial import Poisson
from dpdist.job.families import COUNT, FamilyFacts
class Faulty(Poisson):
    {contract}
    facts = FamilyFacts('a law', COUNT, False, False, ('exact',))
"""
RULE = """
from dpdist.privacy.weights import InverseRule
class Faulty(InverseRule):
    {contract}
"""
STATISTIC = """
from dpdist.job.statistics.kind import Kind
class Faulty(Kind):
    {contract}
    name, written = "{name}", "{{faulty: pay}}"
    def sums(self, one, cells):
        return cells.product(one.variable), cells.weight
"""
READER = """
from dpdist.survey.typed_file import OneFile
class Faulty(OneFile):
    {contract}
    rows = None
    def described(self):
        raise ValueError("a secret value, 739112345")
    def batches(self, columns):
        return []
"""


def read_in(folder: Path, suffix: str) -> list[str]:
    """Columns of a small file in this folder, whose suffix says how it is read."""
    path = folder / f"small.{suffix}"
    path.write_text('{"a": 1}\n')
    return list(open_file(path).columns)


KINDS = {
    "mechanism": Kind(
        SPECS,
        ["capped_totals", "yes_no_counts"],
        SPEC,
        "is not a class derived from MechanismSpec",
        "tables",
        lambda name, _: parsed(counts_job(name) if name not in SPECS else said(name, "substitution", "residuals")),
        r"mechanism\.name",
    ),
    "family": Kind(
        MODELS,
        ["geometric"],
        FAMILY,
        "is not a class with `facts`",
        "poisson",
        lambda name, _: parsed(geometric_job(name)),
        r"model\.family",
    ),
    "weight rule": Kind(
        WEIGHT_RULES,
        ["power"],
        RULE,
        "is not a class derived from WeightRule",
        "inverse",
        lambda name, _: parsed(rule_job(name)),
        r"mechanism\.weights\.rule",
    ),
    "statistic": Kind(
        STATISTICS,
        ["contribution"],
        STATISTIC,
        "is not a class derived from Kind",
        "total",
        lambda name, _: parsed(statistic_job(name)),
        r"tables\.0\.statistics\.0\.name",
    ),
    "reader": Kind(
        READERS,
        ["jsonl"],
        READER,
        "is not a class derived from OneFile",
        "csv",
        lambda name, folder: read_in(folder, name),
        "file",
    ),
}
CONTRACT = "CONTRACT = {}"
OF_EVERY_KIND = {
    "a broken import": ("import not_there", "imported (ModuleNotFoundError: No module named 'not_there')"),
    "another contract": (CONTRACT.format(1), "is written for contract 1"),
    "no contract": ("", "states no CONTRACT"),
    "another type": ("class Faulty:\n    CONTRACT = 2", ""),
    "a name of dpdist": (CONTRACT.format(2), "has the name of a member of dpdist"),
}
"""Of a plug-in: its module, or what is stated of its contract, and the reason of its refusal."""
OF_ONE_KIND = {
    ("mechanism", "another name"): (
        SPEC.format(name="other", contract="CONTRACT: ClassVar[int] = 2"),
        "has a different name in its class",
    ),
    ("mechanism", "a former fact"): (
        SPEC.format(name="faulty", contract="CONTRACT: ClassVar[int] = 2\n    sets_are_free: ClassVar[bool] = True"),
        "states sets_are_free, a fact of an earlier version: write sets (dpdist.job.mechanism)",
    ),
    ("mechanism", "code of dpdist"): (
        SPEC.format(name="faulty", contract="CONTRACT: ClassVar[int] = 2").replace(
            '= "faulty"', '= "dpdist.mechanisms.modips"'
        ),
        "runs code of dpdist.mechanisms.modips",
    ),
    ("family", "chains"): (
        FAMILY.format(contract="CONTRACT = 2").replace("exact", "stan"),
        "has samplers that a plug-in cannot have",
    ),
    ("family", "no draws"): (FAMILY.format(contract="CONTRACT = 2").replace("exact", "grid"), "has no draw_on_grid"),
    ("weight rule", "constants without keys"): (
        RULE.format(contract="CONTRACT = 2\n    constants = frozenset({'c', 'steepness'})"),
        "has the constants steepness, and no section with these keys",
    ),
    ("weight rule", "a section of another kind"): (
        RULE.format(contract="CONTRACT = 2\n    section = dict"),
        "has a section that is not derived from Weights",
    ),
    ("statistic", "another name"): (
        STATISTIC.format(name="other", contract="CONTRACT = 2"),
        "has a different name in its class",
    ),
    ("statistic", "no sums"): (
        STATISTIC.format(name="faulty", contract="CONTRACT = 2").replace("def sums", "def sum"),
        "has no sums: write",
    ),
    ("statistic", "an unknown constant"): (
        STATISTIC.format(name="faulty", contract="CONTRACT = 2\n    takes = frozenset({'power'})"),
        "needs or takes power: a statistic has constants among above, across",
    ),
    ("statistic", "plain"): (
        STATISTIC.format(name="faulty", contract="CONTRACT = 2\n    plain = True"),
        "is `plain`, which only a count, a mean and a total are",
    ),
    ("reader", "a lacking method"): (
        READER.format(contract="CONTRACT = 2").replace("def batches", "def batch"),
        "has no batches: write what is missing in Faulty",
    ),
    ("weight rule", "words that are no text"): (
        RULE.format(contract="CONTRACT = 2\n    exceeds = 3"),
        "`exceeds` is not a string",
    ),
}
FAULTS = [*product(KINDS, OF_EVERY_KIND), *OF_ONE_KIND]


def faulty(kind: str, what: str) -> tuple[str, str, str]:
    """The entry point's name, the module's text and the reason of the refusal."""
    if (kind, what) in OF_ONE_KIND:
        return ("faulty", *OF_ONE_KIND[kind, what])
    (text, reason), name = OF_EVERY_KIND[what], KINDS[kind].of_dpdist if what == "a name of dpdist" else "faulty"
    if what not in ("a broken import", "another type"):
        stated = text.replace("CONTRACT =", "CONTRACT: ClassVar[int] =") if kind == "mechanism" else text or "pass"
        text = KINDS[kind].text.format(name=name, contract=stated)
    return name, text, reason or KINDS[kind].no_member


def install(folder: Path, name: str, text: str, distribution: str = "faulty", group: str = "dpdist.mechanisms") -> None:
    """Puts a distribution with one module into a folder, as an installer leaves it."""
    (folder / "faulty.py").write_text(text)
    info = folder / f"{distribution}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = faulty:Faulty\n")
    invalidate_caches()


@pytest.mark.parametrize(("kind", "what"), FAULTS, ids=map(": ".join, FAULTS))
def test_a_faulty_plugin_is_refused_by_name_and_all_else_works(
    kind: str, what: str, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    members, (name, text, reason) = KINDS[kind].members, faulty(kind, what)
    install(tmp_path, name, text, group=members.group)
    installed.syspath_prepend(str(tmp_path))
    usable, (refusal,) = members.usable()
    assert list(usable) == KINDS[kind].examples
    assert f"plug-in '{name}' of faulty 0.1 (faulty:Faulty)" in str(refusal)
    assert reason in str(refusal)
    for other in KINDS.values() if what == "a broken import" else [KINDS[kind]]:
        for right in (*other.examples, other.of_dpdist):
            other.named(right, tmp_path)
    if name == "faulty":
        with pytest.raises(ProblemsError, match=rf"{KINDS[kind].key}: plug-in 'faulty' of faulty 0\.1"):
            KINDS[kind].named(name, tmp_path)


def test_two_plugins_of_one_name_are_refused(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, "yes_no_counts", "")
    installed.syspath_prepend(str(tmp_path))
    assert list(SPECS.usable()[0]) == ["capped_totals"]
    with pytest.raises(
        PluginRefused, match=r"several plug-ins have the same name: .*dpdist-counts 1\.2\.0.* and .*faulty 0\.1"
    ):
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
    with pytest.raises(
        Incomplete, match=r"plug-in 'yes_no_counts' of dpdist-counts 1\.2\.0 .* not checked against its queries"
    ):
        mechanism_of(job)


def without_bases(kind: type) -> type:
    """A class with everything that another has, derived from no other."""
    members = {name: member for base in reversed(kind.__mro__[:-1]) for name, member in vars(base).items()}
    return type(kind.__name__, (), {name: members[name] for name in members.keys() - {"__dict__", "__weakref__"}})


@pytest.mark.parametrize("derived", [True, False])
def test_a_family_of_a_plugin_is_released_from_and_named(
    derived: bool, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Control: a family of dpdist is not called third-party."""
    if not derived:
        module = import_module("dpdist_counts.geometric")
        module.Geometric = without_bases(module.Geometric)
        assert module.Geometric.__bases__ == (object,)
    survey(1).to_parquet(tmp_path / CURRENT)
    job = parsed(geometric_job(input={"path": str(tmp_path / CURRENT)}))
    assert "family: geometric, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    assert job.identity["model.third_party.version"] == "1.2.0"
    release = dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement = statement_of(public)
    assert statement["model"]["third_party"] == ORIGIN
    assert "third_party" not in statement["mechanism"]
    assert any(
        "family 'geometric' comes from a third party (dpdist-counts 1.2.0)" in text for text in statement["assumptions"]
    )
    assert json.loads((public / "manifest.json").read_text())["third_party_family"] == ORIGIN
    table = release.tables["t"].set_index(["field", "statistic", "estimator"])["estimate"]
    for field, mean in survey(1).groupby("field")["visits"].mean().items():
        assert table[field, "mean", "parameters"] == pytest.approx(mean, rel=0.3)
    assert dpdist.open_release(tmp_path / "work").statement["model"]["third_party"] == ORIGIN
    assert parsed(geometric_job("poisson")).third_party == {}


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
        JobError, match=r"'geometric' is fitted only in closed form(.|\n)*use weighted, weighted_e or unweighted"
    ):
        parsed(geometric_job(mechanism={"name": "censor_uw"}))


def test_a_weight_rule_of_a_plugin_is_released_from_and_named(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own constant takes effect. Control: a rule of dpdist is not called third-party."""
    survey(1).to_parquet(tmp_path / CURRENT)
    job = parsed(rule_job({"rule": "power", "steepness": 4}, input={"path": str(tmp_path / CURRENT)}))
    assert "weight rule: power, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    assert job.identity["mechanism.weights.third_party.version"] == "1.2.0"
    assert job.identity["mechanism.weights.steepness"] == 4
    dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement = statement_of(public)
    assert statement["mechanism"]["weights"] == {"rule": "power", "steepness": 4, "third_party": ORIGIN}
    assert "third_party" not in statement["mechanism"]
    assert any(
        "weight rule 'power' comes from a third party (dpdist-counts 1.2.0)" in text for text in statement["assumptions"]
    )
    assert any(
        "With power privacy weights, the privacy loss of a record can exceed ε" in text for text in statement["cautions"]
    )
    manifest = json.loads((public / "manifest.json").read_text())
    assert manifest["third_party_weight_rule"] == ORIGIN
    assert manifest["job"]["mechanism"]["weights"]["steepness"] == 4
    assert dpdist.open_release(tmp_path / "work").statement["mechanism"]["weights"]["third_party"] == ORIGIN
    assert parsed(rule_job("inverse")).third_party == {}


def test_a_weight_rule_of_a_plugin_passes_the_check_and_its_keys_are_in_the_schema(installed: pytest.MonkeyPatch) -> None:
    """Control: a name that no distribution has; keys of other rules, and values out of range."""
    check_weight_rule("power")
    check_weight_rule("power", {"steepness": 1})
    assert "how fast weights fall beyond c" in json.dumps(Job.model_json_schema())
    with pytest.raises(AssertionError, match="powr: no entry point has this name"):
        check_weight_rule("powr")
    with pytest.raises(AssertionError, match="its section refuses steepness: give in keys"):
        check_weight_rule("power", {"steepness": 99})
    for weights, message in {
        "powr": "did you mean 'power'",
        '{"rule": "power", "steepnes": 2}': "steepnes: unknown key(.|\n)*did you mean 'steepness'",
        '{"rule": "power", "steepness": 99}': "mechanism.weights.steepness: 99",
        '{"rule": "power", "g": 0.5}': "'power' has no constant g",
        '{"rule": "inverse", "steepness": 2}': "steepness: unknown key",
    }.items():
        with pytest.raises(JobError, match=message):
            parsed(rule_job(json.loads(weights) if weights.startswith("{") else weights))


def test_an_error_within_a_plugin_is_reported_as_its_authors(site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its message, which may quote records. Control: the error of a rule of dpdist is its own."""
    survey(1).to_parquet(tmp_path / CURRENT)
    mutated(site, fresh, tmp_path, "power.py", "share**self.steepness, 0.0", "share * {}[739112345.0], 0.0")
    job = rule_job(input={"path": str(tmp_path / CURRENT)}, runtime={"executor": "serial"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    def said_by(*more: str) -> str:
        done = invoke("run", tmp_path / "job.yaml", "-w", tmp_path / f"work{len(more)}", *more)
        assert done.exit_code == 70, done.output
        assert "739112345" not in done.output
        return " ".join(done.output.split())

    text = said_by()
    assert "internal error: KeyError at power.py:" in text
    assert ", in dpdist-counts 1.2.0 remedy: report it to the authors of dpdist-counts without its message" in text
    fresh.setattr("dpdist.privacy.weights.Inverse.__call__", _quoting)
    assert "dpdist-counts" not in said_by("--set", "mechanism.weights=inverse")


MUTATED_RULES = {
    "weights above 1": ("where=unweighted > self.c", "where=unweighted > 0", "must lie in"),
    "no test of bounds that are not finite": (
        "np.where(np.isfinite(unweighted), share**self.steepness, 0.0)",
        "share**self.steepness",
        "a record without a finite bound has a weight above 0",
    ),
    "weights that are no numbers": (
        "np.where(np.isfinite(unweighted), share**self.steepness, 0.0)",
        "share * np.nan",
        "must lie in",
    ),
    "weights that follow from other records": (
        "np.divide(self.c, unweighted,",
        "np.divide(self.c, np.maximum(unweighted, np.nanmedian(unweighted)),",
        "depends on the other records",
    ),
    "weights that grow with the bound": ("share**self.steepness, 0.0", "1.0 - 0.5 * share, 0.0", "has a larger weight"),
    "weights that grow where a narrow dip ends": (
        "share**self.steepness, 0.0",
        "share**self.steepness * np.where((share > 0.66) & (share < 0.77), 0.5, 1.0), 0.0",
        "has a larger weight",
    ),
    "a bound over the target": (
        "    def start(",
        "    def search(self, weights, target):\n        first = yield Ones()\n"
        "        yield Power(target, 1.0)\n\n    def start(",
        "ends with a bound over the target",
    ),
    "a scan from a c of 0": ("return target\n", "return 0.0\n", "all its weights are 0"),
    "a scan without an end": ("return target\n", 'return float("inf")\n', "makes more than 1000 fits"),
    "weights above 1 of later files alone": (
        "share**self.steepness, 0.0",
        "share**self.steepness + (unweighted > 300.0), 0.0",
        "not all from 0 to 1",
    ),
    "a figure of the file in a message": (
        "    def start(",
        "    def search(self, weights, target):\n        first = yield Ones()\n"
        '        raise NotReached(f"the largest bound is {first.largest:g}")\n\n    def start(',
        "the text of NotReached has figures of the file",
    ),
    "a figure of the file in its words": (
        "        assert isinstance(weights, PowerWeights)",
        '        PowerRule.exceeds = f"A record had the bound {first.largest:g}."',
        "its words change with the files",
    ),
    "arrays that are overwritten": (
        "        share = np.divide(",
        "        unweighted += 1.0\n        share = np.divide(",
        "its step writes into the arrays",
    ),
    "random weights": ("share**self.steepness, 0.0", "share * np.random.random(), 0.0", "depends on the other records"),
    "a step that no worker can load": (
        "return Power(c",
        "return (lambda *given: Power(c, 2.0)(*given)) or Power(c",
        "to a worker",
    ),
}
"""Of a weight rule: a text, a faulty one in its place, and what the check says."""


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize("what", MUTATED_RULES)
def test_a_mutated_weight_rule_fails_the_check(what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right, wrong, line = MUTATED_RULES[what]
    file = mutated(site, fresh, tmp_path, "power.py", right, wrong)
    file.write_text(file.read_text().replace("import Step, Summary", "import NotReached, Ones, Step, Summary"))
    with pytest.raises(AssertionError, match=line) as refusal:
        check_weight_rule("power")
    faults = re.findall(r"^power: (.*?)(?: \(on .*\))?$", str(refusal.value), re.MULTILINE)
    assert len(faults) == len(set(faults)), "each fault is told once"


def test_a_statistic_of_a_plugin_is_released_and_named(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Contributions of both sexes are 1 together, with a standard error each. Control: a share is not third-party."""
    for number, name in ((1, CURRENT), (2, EARLIER)):
        survey(number).to_parquet(tmp_path / name)
    reference = statistic_job()["reference"] | {"path": str(tmp_path / EARLIER)}
    job = parsed(statistic_job(input={"path": str(tmp_path / CURRENT)}, reference=reference))
    assert "statistic contribution: contribution, third-party: dpdist-counts 1.2.0" in str(dpdist.plan(job))
    assert job.identity["tables.contribution.third_party.version"] == "1.2.0"
    release = dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    assert json.loads((public / "manifest.json").read_text())["third_party_statistics"] == {"contribution": ORIGIN}
    assumed = statement_of(public)["assumptions"]
    assert any("statistic 'contribution' comes from a third party (dpdist-counts 1.2.0)" in text for text in assumed)
    figures = release.tables["t"]
    figures = figures[figures["estimator"] == "parameters"].pivot_table(index="field", columns="sex", values="estimate")
    assert figures[["f", "m"]].sum(axis=1).to_numpy() == pytest.approx(np.ones(len(figures)))
    assert (release.tables["t"]["standard_error"].dropna() > 0).any()
    assert dpdist.open_release(tmp_path / "work").tables["t"].equals(release.tables["t"])
    assert parsed(said("tables", "substitution", "residuals")).third_party_statistics == {}


def test_a_statistic_of_a_plugin_passes_the_check_and_is_in_the_schema(installed: pytest.MonkeyPatch) -> None:
    check_statistic("contribution", {"contribution": "pay", "across": ["sex"]})
    assert '"contribution"' in json.dumps(Job.model_json_schema())
    with pytest.raises(AssertionError, match=r"gone: no entry point has this name: add one to .*dpdist\.statistics"):
        check_statistic("gone", {"gone": "pay"})


STATISTICS_MUTATED = {
    "written without a constant": ('"across": list(one.across)}', '"above": None}', "is written"),
    "no text": ('return f"contribution across {', 'return "" and f"{', "it has no text"),
    "beyond its limits": ("    name, written", "    limits = (0.0, 0.01)\n    name, written", "outside of its limits"),
    "values that are no sums": (
        "return cells.product(outcome), cells",
        "return cells.product(outcome)._replace(values=cells.weight.values**2), cells",
        "does not move with a record's weight",
    ),
    "an outcome that is not there": ("str(one.variable)", '"income"', "it fails: ValueError"),
    "a range that its values leave": (
        "    def text(",
        "    def possible(self, one, bounds):\n        return 0.5, 1.0\n\n    def text(",
        "outside of what `possible` gives",
    ),
    "a range for outcomes above 0 alone": (
        "    def text(",
        "    def possible(self, one, bounds):\n        return 0.0, 1.0\n\n    def text(",
        "outside of what `possible` gives for outcomes from -9 to 10",
    ),
}
"""Of a statistic: a text, a faulty one in its place, and what the check says."""


@pytest.mark.parametrize("what", STATISTICS_MUTATED)
def test_a_mutated_statistic_fails_the_check(what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right, wrong, line = STATISTICS_MUTATED[what]
    mutated(site, fresh, tmp_path, "contribution.py", right, wrong)
    with pytest.raises(AssertionError, match=line):
        check_statistic("contribution", {"contribution": "pay", "across": ["sex"]})


FAILING = {
    "a constant that no list has": (
        "    def label(",
        '    def operands(self, operand):\n        return {"variable": operand[7]}\n\n    def label(',
        r"statistics\.0: (.|\n)*a contribution is written \{contribution: outcome, across: \[column\]\}",
    ),
    "arithmetic of sums": ("cells.across(one.across, outcome)", "2 * cells.across(one.across)", r"fails \(TypeError: "),
    "one sum without None": (
        "return cells.product(outcome), cells.across(one.across, outcome)",
        "return cells.product(outcome)",
        r"fails \(.*: return the sum above, and the sum below or None, from sums\)",
    ),
    "an outcome that the job lacks": ("product(outcome)", 'product("income")', r"fails \(.*no outcome 'income'"),
    "a column that the table lacks": ("across(one.across,", 'across(["region"],', r"fails \(.*no column 'region'"),
    "faults that are texts": (
        """yield Fault(f"'{column}' is not a column of table '{table.name}'", "use one of its columns", table.by)""",
        """yield column\n        yield "a text" """,
        r"fails \(AttributeError",
    ),
    "a range that is no pair": (
        "    def label(",
        "    def possible(self, one, bounds):\n        return 1.0\n\n    def label(",
        r"fails \(TypeError",
    ),
    "no text": ('return f"contribution across {', 'return None and f"{', r"fails \(TypeError"),
}
"""Of a statistic: a text, one in its place that fails, and what the job is told before anything is spent."""


@pytest.mark.parametrize("what", FAILING)
def test_a_statistic_of_a_plugin_that_fails_is_named_before_anything_is_spent(
    what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a difference is taken of it. Control: the text as it was."""
    right, wrong, message = FAILING[what]
    file = mutated(site, fresh, tmp_path, "contribution.py", right, wrong)
    named = "" if "is written" in message else r"plug-in 'contribution' of dpdist-counts 1\.2\.0 \(.*\) "
    with pytest.raises(JobError, match=named + message):
        parsed(statistic_job())
    of_it = {"difference": {"contribution": "salary", "across": ["sex"]}, "from": {"field": "arts"}}
    difference = [{"name": "t", "by": ["field", "sex"], "statistics": [of_it]}]
    with pytest.raises(JobError, match=message):
        parsed(statistic_job(tables=difference))
    file.write_text(file.read_text().replace(wrong, right))
    del sys.modules["dpdist_counts.contribution"]
    parsed(statistic_job())


def test_two_statistics_with_one_name_in_the_published_table_are_refused(
    site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Control: in two tables."""
    mutated(site, fresh, tmp_path, "contribution.py", 'return f"contribution across {', 'return "mean" or f"{')
    job = statistic_job()
    (table,) = job["tables"]
    outcome = table["statistics"][0]["contribution"]
    mean = [{"mean": outcome}]
    with pytest.raises(JobError, match=rf"statistics\.1: .*'mean of {outcome}' would be the name of two statistics"):
        parsed(job | {"tables": [table | {"statistics": mean + table["statistics"]}]})
    parsed(job | {"tables": [table, table | {"name": "other", "statistics": mean}]})


def test_a_statistic_with_the_name_of_a_key_is_refused(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = STATISTIC.format(name="level", contract="CONTRACT = 2")
    install(tmp_path, "level", text, group=STATISTICS.group)
    installed.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginRefused, match="has the name of a key of statistics: rename it"):
        STATISTICS.plugged_in("level")
    with pytest.raises(AssertionError, match="has the name of a key of statistics: rename it"):
        check_statistic("level", {"level": "pay"})


GAP = """
from dpdist.job.statistics.figures import Ratio
class Faulty(Ratio):
    CONTRACT = 2
    name, written = "gap", "{gap: [outcome, outcome]}"
"""


def test_a_statistic_of_an_unknown_outcome_is_told_how_this_statistic_is_written(
    installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one outcome with a list of columns, and of two outcomes."""
    install(tmp_path, "gap", GAP, group=STATISTICS.group)
    installed.syspath_prepend(str(tmp_path))
    (table,) = statistic_job()["tables"]
    for written, message in (
        ({"contribution": "income", "across": ["sex"]}, r"write \{contribution: \w+, across: \[sex\]\}"),
        ({"gap": ["income", "hours"]}, "a gap needs two outcomes(.|\n)*name two outcomes"),
    ):
        with pytest.raises(JobError, match=message):
            parsed(statistic_job(tables=[table | {"statistics": [written]}]))


CHECKS: dict[str, Callable[[str], object]] = {
    "family": check_family,
    "weight rule": check_weight_rule,
    "statistic": lambda name: check_statistic(name, {name: "pay"}),
    "reader": lambda name: check_reader(name, pyarrow.csv.write_csv),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_the_check_of_a_plugin_whose_name_is_taken_fails(kind: str, installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job with this name has dpdist's member. Control: without the plug-in, the check is of dpdist's member."""
    name, text, reason = faulty(kind, "a name of dpdist")
    installed.setattr(readers, "MANY", 2 * readers.FEW)
    CHECKS[kind](name)
    install(tmp_path, name, text, group=KINDS[kind].members.group)
    installed.syspath_prepend(str(tmp_path))
    plugins.declared.cache_clear()
    with pytest.raises(AssertionError, match=reason):
        CHECKS[kind](name)
    KINDS[kind].named(name, tmp_path)


def write_lines(table: pa.Table, path: Path) -> None:
    """Writes a table as JSON lines; a missing value is a key that is left out."""
    rows = ({key: value for key, value in row.items() if value is not None} for row in table.to_pylist())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines_job(folder: Path) -> Said:
    """A small job whose input and reference are files of JSON lines."""
    for number, name in enumerate(("current", "earlier")):
        write_lines(pa.Table.from_pandas(survey(number)), folder / f"{name}.jsonl")
    job = said("tables", "substitution", "residuals")
    earlier = job["reference"] | {"path": str(folder / "earlier.jsonl")}
    return job | {"input": {"path": str(folder / "current.jsonl")}, "reference": earlier}


def test_a_file_that_a_plugin_reads_is_released_from_and_its_reader_is_named(
    site: Path, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of input and reference. Another version may read other records: it resumes no run. Control: dpdist's reader."""
    job = parsed(lines_job(tmp_path))
    plan = str(dpdist.plan(job))
    assert "reader of the input: jsonl, third-party: dpdist-counts 1.2.0" in plan
    assert "reader of the reference: jsonl, third-party: dpdist-counts 1.2.0" in plan
    dpdist.run(job, tmp_path / "work")
    public = tmp_path / "work" / "public"
    statement, manifest = (json.loads((public / f"{name}.json").read_text()) for name in ("statement", "manifest"))
    named = {"name": "jsonl", **ORIGIN}
    assert statement["readers"] == manifest["third_party_readers"] == {"input": named, "reference": named}
    assert any(
        "The input is read by 'jsonl', third-party: dpdist-counts 1.2.0" in text for text in statement["assumptions"]
    )
    dpdist.publish(tmp_path / "work")
    assert json.loads((public / "manifest.json").read_text()) == manifest
    survey(0).to_parquet(tmp_path / CURRENT)
    assert "reader of the input" not in str(dpdist.plan(job, tmp_path / CURRENT))
    shutil.copytree(site, tmp_path / "site")
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 1.2.0", "Version: 1.3.0"))
    installed.setattr(sys, "path", [str(tmp_path / "site"), *(path for path in sys.path if path != str(site))])
    plugins.declared.cache_clear()
    with pytest.raises(WorkspaceError, match=r"input\.third_party\.version: 1\.2\.0 then, 1\.3\.0 now"):
        dpdist.run(job, tmp_path / "work")


def test_a_damaged_file_of_a_plugin_is_refused_before_anything_is_spent(
    installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a plug-in's error says is not shown: it may quote a value. Control: the file as it was."""
    job = parsed(lines_job(tmp_path))
    path, whole = tmp_path / "current.jsonl", (tmp_path / "current.jsonl").read_text()
    path.write_text(whole.replace("{", "", 1))
    with pytest.raises(DataError, match=r"not a file of JSON lines(.|\n)*by plug-ins: \.jsonl"):
        dpdist.run(job, tmp_path / "work")
    path.write_text(whole)
    dpdist.plan(job)
    installed.setattr(pyarrow.json, "read_json", _quoting)
    with pytest.raises(DataError, match=r"plug-in 'jsonl' of .* cannot read it \(ZeroDivisionError\)") as refusal:
        dpdist.run(job, tmp_path / "work")
    assert "739112345" not in str(refusal.value)
    assert not (tmp_path / "work").exists()


def _quoting(*_: object) -> None:
    raise ZeroDivisionError("the value 739112345")


@pytest.mark.usefixtures("installed")
def test_a_reader_of_a_plugin_passes_the_check() -> None:
    """Control: a suffix that no distribution has."""
    check_reader("jsonl", write_lines)
    with pytest.raises(AssertionError, match="jsonll: no entry point has this name"):
        check_reader("jsonll", write_lines)


MUTATED_READERS = {
    "a row that is left out": (
        "return pyarrow.json.read_json(self.path)",
        "read_json(self.path)[1:]",
        "gives 39 rows of a small",
    ),
    "rows in a different order": (
        "return pyarrow.json.read_json(self.path)",
        'read_json(self.path).sort_by("weight")',
        "keep rows in order",
    ),
    "missing values filled in from other rows": (
        "return pyarrow.json.read_json(self.path)",
        "filled(read_json(self.path))",
        "the column 'income' has other values",
    ),
    "figures that follow from other rows": (
        "return pyarrow.json.read_json(self.path)",
        "centred(read_json(self.path))",
        "the column 'weight' has other values",
    ),
    "texts for numbers": (
        "return pyarrow.json.read_json(self.path)",
        "texts(read_json(self.path))",
        "the column 'sex' of numbers is string",
    ),
    "a column that is left out": (
        "return pyarrow.json.read_json(self.path)",
        'read_json(self.path).drop_columns(["note"])',
        "give all, in order",
    ),
    "columns in the file's order": (
        "self.table.select(list(columns))",
        "self.table.select([name for name in self.table.column_names if name in columns])",
        "columns or types that differ from those it states",
    ),
    "another number of rows": ("int(self.table.num_rows)", "7", "a number of rows that differs from the one it states"),
    "a place kept between readings": (
        "        yield from self.table",
        '        left = self.__dict__.setdefault("left", [])\n        left.append(1)\n'
        "        yield from self.table[len(left) - 1 :]",
        "a number of rows that differs from the one it states",
    ),
    "a value in a message": (
        'raise unreadable(self.name, "not',
        'raise unreadable(self.name, f"{self.path.read_bytes()!r} is not',
        "quotes a value",
    ),
    "damage that is passed over": (
        'raise unreadable(self.name, "not a file of JSON lines", "write one object a line") from None',
        'return pa.table({"a": [1]})',
        "an empty file is read as if it were one",
    ),
}
"""Of a reader: a text, a faulty one in its place, and what the check says."""
IN_READERS = """

def read_json(path):
    return pyarrow.json.read_json(path)

def filled(table):
    values = table["income"].fill_null(pyarrow.compute.mean(table["income"]))
    return table.set_column(table.column_names.index("income"), "income", values)

def centred(table):
    values = pyarrow.compute.subtract(table["weight"], pyarrow.compute.mean(table["weight"]))
    return table.set_column(table.column_names.index("weight"), "weight", values)

def texts(table):
    return table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
"""


@pytest.mark.parametrize("what", MUTATED_READERS)
def test_a_mutated_reader_fails_the_check(what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right, wrong, line = MUTATED_READERS[what]
    wrong = f"return {wrong}" if right.startswith("return pyarrow") else wrong
    file = mutated(site, fresh, tmp_path, "json_lines.py", right, wrong)
    file.write_text(
        file.read_text().replace("import pyarrow.json\n", "import pyarrow.compute, pyarrow.json\n") + IN_READERS
    )
    fresh.setattr(readers, "MANY", 2 * readers.FEW)  # a long file tells nothing more of these
    with pytest.raises(AssertionError, match=line):
        check_reader("jsonl", write_lines)


def mutated(site: Path, patch: pytest.MonkeyPatch, folder: Path, path: str, right: str, wrong: str) -> Path:
    """Imports a copy of the example from now on, in one module of which a text is replaced: that file."""
    # Compiled code of a text of the same size and second would be taken in place of the text.
    shutil.copytree(site, folder / "site", ignore=shutil.ignore_patterns("__pycache__"))
    patch.setattr(sys, "dont_write_bytecode", True)
    file = folder / "site" / "dpdist_counts" / path
    text = file.read_text()
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong))
    patch.syspath_prepend(str(folder / "site"))
    invalidate_caches()
    return file


MUTATIONS = {
    "half of the scale": ("sensitivity", "return UNIT * OF_ONE", "return UNIT / 2 * OF_ONE", "LossExceeded"),
    "a distance stated as an eighth": ("sensitivity", "OF_ONE.times(UNIT), scale", "OF_ONE, scale / UNIT", "cost"),
    "no clip": ("query", "np.minimum(records.weight, self.cells.cap)", "records.weight", "cost 24"),
    "no clip of weights beyond the small survey's bounds": (
        "query",
        "np.minimum(records.weight, self.cells.cap)",
        "np.where(records.weight > 400.0, records.weight, np.minimum(records.weight, self.cells.cap))",
        "for values beyond the small survey's bounds too",
    ),
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
    "one noise for two sets": (
        "query",
        "sums(exact, query, number)",
        "sums(exact, query, 1)",
        "give each query a different number",
    ),
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


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", [pytest.param("yes_no_counts", marks=pytest.mark.long), "capped_totals"])
def test_the_example_passes_the_check_of_mechanisms(name: str) -> None:
    """It says under which adjacencies no small job is accepted: sizes are secret there, and need noise of their own."""
    assert check_mechanism(SPECS.named(name)) == ("add_remove, same_x", "substitution, anywhere")


OFTEN = ("no clip of weights beyond the small survey's bounds", "exact sums", "records in post", "weights without bounds")
"""Each is found by another check; the others are `long`."""


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[] if what in OFTEN else [pytest.mark.long]) for what in MUTATIONS]
)
def test_a_mutated_mechanism_fails_the_check(what: str, site: Path, fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, right, wrong, line = MUTATIONS[what]
    mutated(site, fresh, tmp_path, f"capped_totals/{module}.py", right, wrong)
    with pytest.raises(AssertionError, match=line):
        check_mechanism(SPECS.named("capped_totals"))

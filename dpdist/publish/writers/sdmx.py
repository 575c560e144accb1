"""The folder `sdmx/`, with every printed table as an SDMX dataflow.

One message holds structures; SDMX-CSV 2.0 files hold figures.

An observation is the unrounded figure of the default estimator. Codes are of SDMX's cross-domain lists. OBS_STATUS: A
normal, U low reliability, O missing, Q withheld or not printed by the job's rules. CONF_STATUS, one for all figures: F free
for publication, N where nothing is promised or the statement says not to publish.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.core.files import write_json
from dpdist.core.records import TOTAL
from dpdist.job import Job, Statistic, Table
from dpdist.job.presentation import FLAGS, Sdmx
from dpdist.publish.printed_tables import PrintedTable, far_off_in, head_of, ratings, shown_rows
from dpdist.publish.withholding import BECAUSE

if TYPE_CHECKING:
    from pysdmx.model import Codelist, Components, ConceptScheme, Dataflow, DataStructureDefinition, Schema

CREATED = datetime(2000, 1, 1, tzinfo=UTC)
"""Fixed value for the time of writing, so that the same release gives the same bytes."""
ALL = "_T"
"""SDMX's code of a total."""
PERIOD = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-\d{2})?|-(A1|S[12]|T[1-3]|Q[1-4]|M\d{2}|W\d{2}|D\d{3}))?")
"""Pattern of a time period in SDMX."""
STATUS = {
    "A": "Normal value",
    "U": "Low reliability",
    "O": "Missing value",
    "Q": "Missing value; suppressed",
}
CONFIDENTIALITY = {"F": "Free (free for publication)", "N": "Not for publication, restricted for internal use only"}
LIMITS = {
    "STD_ERROR": ("standard_error", "Standard error"),
    "LOWER_LIMIT": ("lower", "Lower limit of the 90 % interval"),
    "UPPER_LIMIT": ("upper", "Upper limit of the 90 % interval"),
}
"""Attributes of an observation: by id, the column in the published table and the attribute's name."""


def write_sdmx(
    folder: Path, job: Job, tables: Sequence[tuple[PrintedTable, pa.Table]], statement: Mapping[str, Any]
) -> None:
    """Writes the dataflows, if the job names an SDMX agency."""
    if job.presentation.sdmx is None:
        return
    from pysdmx.io.csv.sdmx20.writer import write as write_csv
    from pysdmx.io.json.sdmxjson2.writer.v2_0.structure import write as write_structure
    from pysdmx.io.pd import PandasDataset
    from pysdmx.model import Organisation
    from pysdmx.model.message import Header

    folder.mkdir()
    release = SdmxRelease(job, job.presentation.sdmx)
    ids = identifiers([table.name for table in job.tables])
    flows = []
    for table, (form, published) in zip(job.tables, tables, strict=True):
        flows.append(release.dataflow(ids[table.name], form.caption, str(statement["guarantee_in_words"])))
        figures = release.observations(table, form, published, statement)
        data = PandasDataset(structure=release.schema(ids[table.name]), data=figures)
        write_csv([data], output_path=folder / f"{table.name}.csv")
    header = Header(id=release.id, prepared=CREATED, sender=Organisation(job.presentation.sdmx.agency.replace(".", "_")))
    elements = [*release.codelists.values(), release.concepts, release.definition, *flows]
    message = json.loads(str(write_structure(elements, header=header)))
    for structure in message["data"]["dataStructures"]:  # pysdmx writes an empty list, which SDMX's schema refuses
        if not structure["dataStructureComponents"].get("groups", True):
            del structure["dataStructureComponents"]["groups"]
    write_json(folder / "structure.json", message)


def confidentiality(statement: Mapping[str, Any]) -> str:
    """Returns the CONF_STATUS that all figures of a release have."""
    return "N" if statement["guarantee"] == "none" or "do_not_publish" in statement else "F"


def identifier(text: str, in_use: Sequence[str] = ()) -> str:
    """Returns an id that SDMX accepts and that is not taken: ASCII letters, digits and _, beginning with a letter."""
    base = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_").upper()
    base = base if base[:1].isalpha() else f"C{base}"
    candidate, number = base, 2
    while candidate in in_use:
        candidate, number = f"{base}_{number}", number + 1
    return candidate


def identifiers(texts: Sequence[str], *in_use: str) -> dict[str, str]:
    """An id for every text, as `identifier` makes them; no two are alike, and none is in `in_use`."""
    by_text: dict[str, str] = {}
    for text in texts:
        by_text[text] = identifier(text, [*in_use, *by_text.values()])
    return by_text


def _named(statistic: Statistic) -> str:
    return " ".join(filter(None, (statistic.label, statistic.about)))


class Part(NamedTuple):
    """A component of a structure: its name, and its codes with labels or its type."""

    id: str
    name: str
    role: str
    codes: Mapping[str, str] | None = None
    dtype: str | None = None


class SdmxRelease:
    """The structure that all tables of a job share: code lists, concepts and dimensions."""

    def __init__(self, job: Job, sdmx: Sdmx):
        self.job, self.sdmx, self.id = job, sdmx, identifier(job.dataset)
        self.time = "TIME_PERIOD" if PERIOD.fullmatch(job.period) else "PERIOD"
        fixed = ("STATISTIC", "OBS_VALUE", self.time, *LIMITS, "OBS_STATUS", "CONF_STATUS")
        names = list(dict.fromkeys(name for table in job.tables for name in table.columns))
        self.columns = identifiers(names, *fixed)
        self.levels = {name: identifiers(list(map(str, job.columns[name].levels or ()))) for name in names}
        self.heads = {
            _named(statistic): head_of(job.presentation, statistic)
            for table in job.tables
            for statistic in table.statistics
        }
        self.statistics = identifiers(list(self.heads))
        self.parts = [*self._dimensions(), Part("OBS_VALUE", "Observation value", "M", dtype="Double")]
        self.parts += [Part(name, head, "A", dtype="Double") for name, (_, head) in LIMITS.items()]
        self.parts += [Part("OBS_STATUS", "Observation status", "A", STATUS)]
        self.parts += [Part("CONF_STATUS", "Confidentiality status", "A", CONFIDENTIALITY)]

    def _dimensions(self) -> Iterator[Part]:
        text = self.job.presentation
        for name, column in self.columns.items():
            labels = {code: text.level(name, level) for level, code in self.levels[name].items()}
            summed = [table for table in self.job.tables if table.margins or name not in table.by]
            members = {self._total(table, name): table.universe.get(name, ()) for table in summed}
            sums = {
                code: " or ".join(text.level(name, member) for member in levels) or TOTAL
                for code, levels in members.items()
            }
            yield Part(column, text.label(name), "D", {**sums, **labels})
        heads = {code: self.heads[statistic] for statistic, code in self.statistics.items()}
        yield Part("STATISTIC", "Statistic", "D", heads)
        kind = "ObservationalTimePeriod" if self.time == "TIME_PERIOD" else "String"
        yield Part(self.time, "Period", "D", dtype=kind)

    def _total(self, table: Table, name: str) -> str:
        """The code of a column in a table's margins, or where the table is not by it.

        Under a universe it is the code of its one level, or a code for all of its levels.
        """
        codes = [self.levels[name][str(level)] for level in table.universe.get(name, ())]
        if len(codes) < 2:
            return codes[0] if codes else ALL
        return identifier("_or_".join(sorted(codes)), list(self.levels[name].values()))

    @property
    def _owner(self) -> dict[str, str]:
        return {"agency": self.sdmx.agency, "version": self.sdmx.version}

    @cached_property
    def codelists(self) -> dict[str, Codelist]:
        """By the id of a component."""
        from pysdmx.model import Code, Codelist

        coded = [part for part in self.parts if part.codes is not None]
        common = {part.id: f"CL_{part.id}" for part in coded if part.role == "A"}
        return {
            part.id: Codelist(
                id=common.get(part.id) or identifier(f"CL_{self.id}_{part.id}", list(common.values())),
                name=part.name,
                items=[Code(id=code, name=label) for code, label in (part.codes or {}).items()],
                **self._owner,
            )
            for part in coded
        }

    @cached_property
    def concepts(self) -> ConceptScheme:
        from pysdmx.model import Concept, ConceptScheme

        items = [Concept(id=part.id, name=part.name) for part in self.parts]
        return ConceptScheme(id=f"CS_{self.id}", name=self._title, items=items, **self._owner)

    @cached_property
    def components(self) -> Components:
        from pysdmx.model import Component, Components, DataType, ItemReference, Role

        parts = []
        for part in self.parts:
            concept = ItemReference("Concept", self.sdmx.agency, self.concepts.id, self.sdmx.version, part.id)
            codes = self.codelists.get(part.id)
            parts.append(
                Component(
                    id=part.id,
                    required=part.role == "D",
                    role=Role(part.role),
                    concept=concept,
                    local_dtype=DataType(part.dtype) if part.dtype else DataType.STRING,
                    local_codes=codes,
                    local_enum_ref=f"urn:sdmx:org.sdmx.infomodel.codelist.{codes.short_urn}" if codes else None,
                    attachment_level="O" if part.role == "A" else None,
                )
            )
        return Components(parts)

    @cached_property
    def definition(self) -> DataStructureDefinition:
        from pysdmx.model import DataStructureDefinition

        return DataStructureDefinition(id=self.id, name=self._title, components=self.components, **self._owner)

    @property
    def _title(self) -> str:
        return self.job.presentation.title or self.job.dataset

    def schema(self, flow: str) -> Schema:
        from pysdmx.model import Schema

        return Schema(context="dataflow", id=flow, components=self.components, generated=CREATED, **self._owner)

    def dataflow(self, id: str, title: str, guarantee: str) -> Dataflow:
        """A table's dataflow under the structure that all tables share."""
        from pysdmx.model import Dataflow

        return Dataflow(id=id, name=title, description=guarantee, structure=self.definition, **self._owner)

    def observations(
        self, table: Table, form: PrintedTable, published: pa.Table, statement: Mapping[str, Any]
    ) -> pd.DataFrame:
        shown = shown_rows(published, form.estimator)
        rows = shown.to_pandas()
        frame = pd.DataFrame(index=range(len(rows)))
        for name, column in self.columns.items():
            total = self._total(table, name)
            codes = {TOTAL: total, **self.levels[name]}
            frame[column] = [codes[level] for level in rows[name]] if name in table.by else total
        statistics = [self.statistics[_named(statistic)] for statistic in table.statistics]
        frame["STATISTIC"] = np.resize(np.array(statistics, dtype=object), len(rows))
        frame[self.time] = self.job.period
        quality = ratings(self.job.presentation.quality, table, shown, far_off_in(statement, table.name))
        columns = {"OBS_VALUE": "estimate", **{name: column for name, (column, _) in LIMITS.items()}}
        for name, column in columns.items():
            figures = rows[column].to_numpy(dtype=float)
            frame[name] = [
                repr(v) if np.isfinite(v) and is_shown else None
                for v, is_shown in zip(figures.tolist(), quality.printed, strict=True)
            ]
        low, missing = np.isin(quality.flags, FLAGS[1:]), rows["estimate"].isna()
        withheld = rows[BECAUSE].notna().to_numpy() if BECAUSE in rows else np.zeros(len(rows), dtype=bool)
        frame["OBS_STATUS"] = np.select([~quality.printed | withheld, missing, low], ["Q", "O", "U"], "A")
        frame["CONF_STATUS"] = confidentiality(statement)
        return frame

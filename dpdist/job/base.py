"""Reads the base job that another job extends."""

from __future__ import annotations

from pydantic import Field

from dpdist.job.values import Frozen

BASE_SCHEMA = {"type": "string", "description": "another job file, whose keys hold where this one says nothing"}


class Base(Frozen):
    """The file that a job extends, and the keys, dotted, that the job says otherwise."""

    path: str = Field(description="the file, as the job names it")
    differs: tuple[str, ...] = Field(default=(), description="keys whose values are not the base's")

    @property
    def in_words(self) -> str:
        """Describes the base for plans."""
        return f"{self.path}; differs in: {', '.join(self.differs) or 'nothing'}"

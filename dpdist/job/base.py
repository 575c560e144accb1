"""Describes the base job that another job extends: its file, and the keys whose values differ."""

from __future__ import annotations

from pydantic import Field

from dpdist.job.values import Frozen

BASE_SCHEMA = {"type": "string", "description": "another job file, whose keys hold where this one says nothing"}


class Base(Frozen):
    """The file that a job extends, and the dotted keys whose values the job changes."""

    path: str = Field(description="the file, as the job names it")
    differs: tuple[str, ...] = Field(default=(), description="keys whose values are not the base's")

    @property
    def in_words(self) -> str:
        """The base as text, for plans."""
        return f"{self.path}; differs in: {', '.join(self.differs) or 'nothing'}"

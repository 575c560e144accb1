"""For `job.specs`, `job.families`, `job.weights`: the field of a job that names a member of dpdist or a plug-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from dpdist.core.plugins import Members, Refused

REFUSED = "plugin_refused"
"""Type of pydantic's error for an unusable plug-in; its context has the kind of member and the reason."""


@dataclass(frozen=True)
class OneOf:
    """Annotates a name of a member. A plug-in is imported when it is named, or when all names are listed."""

    kind: str
    members: Members[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = core_schema.literal_schema(list(self.members))
        return core_schema.no_info_wrap_validator_function(self._validated, names)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core_schema.literal_schema(self._all()))

    def _all(self) -> list[Any]:
        return [*self.members, *self.members.usable()[0]]

    def _validated(self, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, str) or value in self.members:
            return handler(value)
        try:
            self.members.plugged_in(value)
        except Refused as refusal:
            raise PydanticCustomError(REFUSED, "{reason}", {"kind": self.kind, "reason": str(refusal)}) from None
        except KeyError:
            return SchemaValidator(core_schema.literal_schema(self._all())).validate_python(value)
        return value

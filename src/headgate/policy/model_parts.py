"""The common parts of the models of a policy file."""

from __future__ import annotations

from typing import Annotated

from headgate.errors import MissingExtraError
from headgate.policy.problems import shown

try:
    from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
except ImportError as error:
    raise MissingExtraError("a policy", extra="policy", why=error) from error

__all__ = [
    "NAME",
    "ONE_OR_MORE",
    "AfterValidator",
    "BeforeValidator",
    "Field",
    "Name",
    "Part",
    "SomeTexts",
    "Texts",
    "WithJsonSchema",
    "list_of_texts",
    "model_validator",
]

NAME = r"^[a-z][a-z0-9_.-]{0,63}$"


class Part(BaseModel):
    """A map of a policy file; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


def list_of_texts(value: object) -> tuple[str, ...]:
    """Read one text, or a list of texts that is not empty; raises ValueError."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values:
        raise ValueError(f"must be text or a list of texts, not {shown(value)}")
    for item in values:
        if not isinstance(item, str):
            raise ValueError(f"must be text or a list of texts, not a list with {item!r}")
    return tuple(values)


ONE_OR_MORE = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
Name = Annotated[str, Field(pattern=NAME)]
Texts = Annotated[tuple[str, ...], BeforeValidator(list_of_texts), WithJsonSchema(ONE_OR_MORE)]
SomeTexts = Annotated[tuple[str, ...] | None, BeforeValidator(list_of_texts), WithJsonSchema(ONE_OR_MORE)]
"""`Texts` of an optional field; a field that is present without a text is refused."""

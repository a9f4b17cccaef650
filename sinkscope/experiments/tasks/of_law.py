"""What jobs on the Bigram-Backcopy task have in common: the fields that decide its law."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, PositiveInt, model_validator

from sinkscope.errors import InputError
from sinkscope.experiments.tasks.law import TOPICS, Law, law_of
from sinkscope.invalid import Part


class OfLaw(Part):
    """A job whose sequences are drawn from a law (`law_of`); `decide_law` names its fields that say which."""

    decide_law: ClassVar[tuple[str, ...]] = ("source", "characters", "triggers")

    task: str
    source: str = TOPICS
    characters: int = Field(default=64, ge=5)
    triggers: PositiveInt = 3

    @model_validator(mode="after")
    def _some_are_no_triggers(self) -> OfLaw:
        if self.triggers > self.characters - 2:
            raise InputError(f"{self.task} field 'triggers' = {self.triggers}: leave at least 2 other characters")
        return self

    @property
    def told(self) -> dict[str, Any]:
        """The fields that decide the law."""
        return {name: getattr(self, name) for name in self.decide_law}

    @property
    def law(self) -> Law:
        """What follows what. Raises `InputError` as `law_of` does."""
        return law_of(**self.told)

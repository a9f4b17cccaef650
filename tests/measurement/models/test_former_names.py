"""The room `sinkscope.survey` of before answers for one release."""

from __future__ import annotations

import pytest

from sinkscope import measurement, survey


@pytest.mark.parametrize("name", survey.NAMES)
def test_each_former_name_warns_and_is_the_new_one(name):
    with pytest.warns(DeprecationWarning, match=f"survey.{name} is sinkscope.measurement.{survey.NAMES[name]}"):
        assert getattr(survey, name) is getattr(measurement, survey.NAMES[name])

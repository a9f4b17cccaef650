import re

import pytest

from sinkscope import theme

PALETTE = {
    name: value
    for name, value in vars(theme).items()
    if name.isupper() and isinstance(value, str) and value.startswith("#")
}


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


def test_every_colour_has_a_dark_partner():
    used = set(re.findall(r"#[0-9a-f]{6}", theme.template().to_plotly_json().__repr__()))
    assert set(PALETTE.values()) | set(theme.SERIES) | set(theme.BELOW) | set(theme.ABOVE) <= set(theme.DARK)
    assert {color for color in used if color in PALETTE.values()} <= set(theme.DARK)


@pytest.mark.parametrize("color", [*theme.SERIES, theme.SINK])
def test_series_stand_out_on_both_papers(color):
    assert contrast(color, theme.PAPER) >= 3
    assert contrast(theme.DARK[color], theme.DARK[theme.PAPER]) >= 3


@pytest.mark.parametrize("color", [theme.INK, theme.MUTED])
def test_text_is_legible_on_both_papers(color):
    assert contrast(color, theme.PAPER) >= 4.5
    assert contrast(theme.DARK[color], theme.DARK[theme.PAPER]) >= 4.5


def test_a_tint_keeps_its_palette_colour():
    assert theme.tint(theme.BLUE, 0.5) == theme.BLUE + "80"


def test_series_never_wear_the_colour_of_the_sink():
    assert theme.SINK not in theme.SERIES

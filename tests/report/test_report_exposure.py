"""Stretches outside others, against a count of small steps."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from collbench.report.exposure import length, merged, outside

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends))), max_size=8)


def _units(spans):
    return {unit for start, end in spans for unit in range(start, end)}


@given(SPANS)
def test_merged_spans_cover_the_same_and_do_not_touch(spans):
    whole = merged(spans)
    assert _units(whole) == _units(spans)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(whole))


@given(st.tuples(st.integers(0, 15), st.integers(16, 30)), SPANS)
def test_what_is_outside_is_covered_by_none(span, spans):
    parts = outside(span, merged(spans))
    assert _units(parts) == _units([span]) - _units(spans)
    assert length(parts) == len(_units(parts))

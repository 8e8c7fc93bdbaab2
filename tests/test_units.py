from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import InputError
from collbench.units import format_size, format_time_us, parse_latency, parse_rate, parse_size

modest = settings(deadline=None, max_examples=100)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("8", 8),
        ("8B", 8),
        ("64K", 65536),
        ("64k", 65536),
        ("128M", 134217728),
        ("1G", 1073741824),
        ("1g", 1073741824),
        ("2T", 2199023255552),
        ("1KiB", 1024),
        ("3MiB", 3145728),
        ("1GiB", 1073741824),
        ("1kB", 1000),
        ("1KB", 1000),
        ("25MB", 25000000),
        ("2GB", 2000000000),
        ("1.5M", 1572864),
        (".5K", 512),
        ("1e6", 1000000),
        (" 64 K ", 65536),
        ("+8", 8),
        ("1.7", 1),
        (4096, 4096),
        (1.5e9, 1500000000),
    ],
)
def test_a_size_is_read_in_every_form(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["1.001kB", "4.1kB", "2.3GB", "0.29MB", "1.009GB"])
def test_a_decimal_size_is_exact(text):
    number, unit = text[:-2], text[-2:]
    whole, decimals = number.split(".")
    digits = {"kB": 3, "MB": 6, "GB": 9}[unit]
    assert parse_size(text) == int(whole + decimals.ljust(digits, "0"))


def test_a_size_beyond_two_to_the_53_keeps_its_last_digit():
    assert parse_size("9007199254740993") == 9007199254740993


@pytest.mark.parametrize(
    "text",
    ["", " ", "K", "abc", "8X", "8KK", "8 8", "1,5M", "-1", "-8K", "nan", "inf", "1e999", "1e300T", "16E", "0x10",
     "8K/s", None, True, False, [8], b"8"],
)  # fmt: skip
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match=r"^size .*(expected|unknown unit)") as refusal:
        parse_size(text)
    assert "\n" not in str(refusal.value)


def test_a_refusal_names_what_was_asked_for_and_the_unit():
    with pytest.raises(InputError, match=r"--minbytes '8Q' has the unknown unit 'Q': expected bytes, or .*KiB.*kB"):
        parse_size("8Q", "--minbytes")


@pytest.mark.parametrize(
    ("text", "rate_GBps"),
    [
        ("25GB/s", 25.0),
        ("200Gb/s", 25.0),
        ("200Gbit/s", 25.0),
        ("200Gbps", 25.0),
        ("25GBps", 25.0),
        ("25", 25.0),
        (25, 25.0),
        (12.5, 12.5),
        ("100Mb/s", 0.0125),
        ("800MB/s", 0.8),
        ("1TB/s", 1000.0),
        ("8b/s", 1e-9),
        ("1GiB/s", 1.073741824),
        ("0.5 GB/s", 0.5),
    ],
)
def test_a_rate_is_read_in_every_form(text, rate_GBps):
    assert parse_rate(text) == pytest.approx(rate_GBps, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0GB/s", "-25GB/s", "25GB", "25gb/s", "25G", "fast", "nan", "inf", "1e999", "1e308TB/s", "1e-320b/s",
     None, True],
)  # fmt: skip
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(InputError, match=r"bandwidth .*expected a rate above zero such as 25GB/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5us", 5e-6), ("5µs", 5e-6), ("0.1ms", 1e-4), ("250ns", 2.5e-7), ("2s", 2.0), ("5", 5e-6), (5, 5e-6), ("0", 0.0)],
)
def test_a_latency_is_read_in_every_form(text, seconds):
    assert parse_latency(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "-1us", "5 minutes", "5m", "5US", "us", "nan", "inf", "1e999s", None, False])
def test_what_is_no_latency_is_refused(text):
    with pytest.raises(InputError, match=r"latency .*expected a time such as 5us"):
        parse_latency(text)


@modest
@given(st.integers(0, 2**40), st.sampled_from([("", 0), ("K", 1), ("M", 2), ("G", 3), ("KiB", 1), ("MiB", 2)]))
def test_whole_binary_sizes_go_round(number, unit):
    if number * 1024 ** unit[1] < 2**63:
        assert parse_size(f"{number}{unit[0]}") == number * 1024 ** unit[1]


@modest
@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from([("kB", 3), ("MB", 6), ("GB", 9)]))
def test_decimal_sizes_go_round(whole, thousandths, unit):
    expected = (whole * 1000 + thousandths) * 10 ** (unit[1] - 3)
    assert parse_size(f"{whole}.{thousandths:03d}{unit[0]}") == expected


@modest
@given(st.integers(1, 2**44))
def test_a_printed_size_reads_back_within_its_four_digits(size_bytes):
    text = format_size(size_bytes)
    assert "e" not in text
    assert parse_size(text) == pytest.approx(size_bytes, rel=1e-3)


@modest
@given(st.floats(1e-6, 1e5))
def test_gigabytes_are_eight_times_gigabits(rate):
    assert parse_rate(f"{rate!r}GB/s") == pytest.approx(8 * parse_rate(f"{rate!r}Gb/s"), rel=1e-12)


@modest
@given(st.floats(0.001, 9e8))
def test_a_printed_time_reads_back_within_its_three_digits(time_us):
    text = format_time_us(time_us)
    assert "e" not in text.split()[0] or time_us < 1e-3
    assert parse_latency(text) * 1e6 == pytest.approx(time_us, rel=6e-3)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (65536, "64 KiB"),
        (1572864, "1.5 MiB"),
        (999936, "976.5 KiB"),
        (2**30, "1 GiB"),
        (10 * 2**40, "10 TiB"),
    ],
)
def test_a_size_is_printed_in_binary_units(size_bytes, text):
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0 us"),
        (0.5, "0.5 us"),
        (12.34, "12.3 us"),
        (999.4, "999 us"),
        (999.7, "1 ms"),
        (4560.0, "4.56 ms"),
        (999700.0, "1 s"),
        (1.2e6, "1.2 s"),
        (999.7e6, "1000 s"),
        (12345e6, "12345 s"),
    ],
)
def test_a_time_is_printed_with_three_digits(time_us, text):
    assert format_time_us(time_us) == text


def test_a_latency_is_a_float_of_seconds():
    assert isinstance(parse_latency("1us"), float) and math.isclose(parse_latency("1us"), 1e-6)

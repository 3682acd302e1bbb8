"""Patterns, the order of names, guesses."""

import pytest

from adapter.cli.names import guesses, is_pattern, matcher, natural_order


@pytest.mark.parametrize(
    ("patterns", "name", "matches"),
    [
        ((), "anything", True),
        (("orders",), "orders", True),
        (("orders",), "orders-1", False),
        (("orders-*",), "orders-", True),
        (("orders-?",), "orders-10", False),
        (("orders-[12]",), "orders-2", True),
        (("orders-[!12]",), "orders-2", False),
        (("Orders*",), "orders", False),
        (("a[*]b",), "a*b", True),
        (("a[*]b",), "axb", False),
        (("x", "o*"), "orders", True),
        (("*",), "a\nb", True),
    ],
)
def test_a_pattern_is_for_the_whole_name(patterns: tuple[str, ...], name: str, *, matches: bool) -> None:
    """As docs/output.md has it."""
    assert matcher(patterns)(name) is matches


def test_only_three_characters_make_a_pattern() -> None:
    """Those that names of groups have besides are themselves."""
    assert [is_pattern(name) for name in ("a*", "a?", "[a]", "%RETRY%g", "g@broadcast", "a.b|c{d}(e)^$+", "]")] == [
        *[True] * 3,
        *[False] * 4,
    ]


def test_numbers_in_names_are_sorted_as_numbers() -> None:
    """Also the large ones, those with zeros in front, and names of which one begins the other."""
    names = [
        "orders",
        "orders-1",
        "orders-01",
        "orders-2",
        "orders-10",
        f"orders-{'9' * 255}",
        "orders/9",
        "orders/10",
        "payments",
    ]
    assert sorted({*names}, key=natural_order) == [
        "orders",
        "orders-01",
        "orders-1",
        "orders-2",
        "orders-10",
        f"orders-{'9' * 255}",
        "orders/9",
        "orders/10",
        "payments",
    ]


def test_a_guess_is_made_of_what_looks_alike() -> None:
    """Up to three; nothing for a name of which none does."""
    assert guesses("ordrs", ["orders", "payments"]) == "; did you mean orders?"
    assert guesses("xyz", ["orders", "payments"]) == ""

"""Collapse metrics on groups small enough to count by hand."""

import pytest

from scope_jax.play.collapse import collapse_metrics, identical_pairs


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (["a", "b", "c"], 0.0),
        (["a", "a ", "\na", "b"], 3 / 6),  # three equal texts make three pairs of six
        (["x y", "x  y", "u", "u"], 2 / 6),
        (["a", "A"], 0.0),
        (["", " "], 1.0),
    ],
)
def test_share_of_identical_pairs(texts: list[str], share: float) -> None:
    assert identical_pairs(texts) == pytest.approx(share)


def test_means_over_groups_and_texts() -> None:
    groups = [["ab cd", "ab cd"], ["a", "b", "a"], ["alone"], []]
    found = collapse_metrics("solver", groups)
    assert found["solver/identical_pairs"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["solver/mean_length"] == pytest.approx(18 / 6) and len(found) == 2
    words = collapse_metrics("solver", groups, lambda text: len(text.split()))
    assert words["solver/mean_length"] == pytest.approx(8 / 6)
    assert collapse_metrics("a", [["alone"]]) == {"a/mean_length": 5.0} and collapse_metrics("a", []) == {}


def test_one_text_makes_no_pair() -> None:
    with pytest.raises(ValueError, match="at least two texts"):
        identical_pairs(["a"])

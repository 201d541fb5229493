"""The equations of SCORE and the parsing of its evaluator's outputs, on hand-computed cases."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from scope_jax.games import score
from scope_jax.games.score import meta_harness, rules, state
from scope_jax.games.score.options import options
from scope_jax.games.score.state import Assessment, Constraints, Rubric, RubricUse
from scope_jax.learner import advantages
from scope_jax.learner.types import Episode
from tests.games.score_world import DEFAULT, assessment, card, evaluations, rubric

RUBRIC = Rubric("factuality", {"insight": 0.5, "coherence": 0.25})
NOW = meta_harness.default(card())
GOOD = {"factuality": 8, "insight": 4, "coherence": 2}


# -------------------------------------------------------------------------------------------------------------- rewards
def test_the_reward_of_a_report():
    """R_s = a (1 + Σ w s): 0.8 · (1 + 0.5 · 0.4 + 0.25 · 0.2) = 0.8 · 1.25; with points 8 · (1 + 2 + 0.5)."""
    shares = {name: value / 10 for name, value in GOOD.items()}
    assert rules.report_reward(0.8, RUBRIC.weights, shares) == pytest.approx(1.0)
    assert rules.report_reward(8.0, RUBRIC.weights, {"insight": 4.0, "coherence": 2.0}) == pytest.approx(28.0)
    assert rules.report_reward(0.0, RUBRIC.weights, shares) == 0.0


def test_the_baseline_is_used_before_it_is_updated():
    """R = 0.6, 0.9, 0.3 with b_0 = 0, decay 0.7: A = 0.6, 0.9 − 0.18, 0.3 − 0.396; b = 0.18, 0.396, 0.3672."""
    (update,) = (update for update in score.GAME.updates(card()) if update.name == "evaluator")
    baseline, seen = None, []
    for reward in (0.6, 0.9, 0.3):
        episode = Episode("evaluator", "actor", "evaluator/0", (), reward)  # tokens are not needed to update it (U > 1)
        ((rated,), baseline) = advantages.assign([episode], update.card, baseline)
        seen += [rated.advantage, baseline]
    assert seen == pytest.approx([0.6, 0.18, 0.72, 0.396, -0.096, 0.3672])


def test_the_solver_is_updated_first_and_the_evaluators_loss_is_scaled():
    solver, evaluator = score.GAME.updates(card(evaluator_scale=0.5))
    assert (solver.name, evaluator.name) == ("solver", "evaluator") and solver.policy == evaluator.policy == "actor"
    assert evaluator.roles[0].weight == 0.5 and solver.roles[0].weight == 1.0
    assert [u.card.kl_coef for u in (solver, evaluator)] == [0.05, 0.05] and evaluator.card.kl == solver.card.kl == "k3"
    assert [u.name for u in score.GAME.updates(card(train=["solver"]))] == ["solver"]


# ---------------------------------------------------------------------------------------------------------- consistency
THREE = ["the river made the town grow", "the river made the town rich", "bananas are yellow fruit"]


@pytest.mark.parametrize("idf", ["query", "batch"])
def test_consistency_is_the_mean_cosine_of_pairs(idf: str):
    """Against scikit-learn, pair by pair; a missing conclusion has similarity 0 with every other."""
    groups = [THREE, [THREE[0], None, THREE[1]]]
    fitted = [[text for text in group if text] for group in groups]
    everything = [text for group in fitted for text in group]
    expected = []
    for group in fitted:
        vectors = TfidfVectorizer().fit(everything if idf == "batch" else group).transform(group)
        cosines = cosine_similarity(vectors)
        expected.append(sum(cosines[i, j] for i in range(len(group)) for j in range(i + 1, len(group))) / 3)
    assert rules.consistency(groups, idf) == pytest.approx(expected, abs=1e-12)


def test_equal_conclusions_have_similarity_1_and_empty_ones_0():
    assert rules.consistency([["the river"] * 3, ["the river", "yellow fruit"]], "query") == pytest.approx([1.0, 0.0])
    assert rules.consistency([[None, None], ["", "! a ?"], ["the river", None]], "query") == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="at least two"):
        rules.consistency([["alone"]], "query")


@pytest.mark.parametrize(
    ("report", "conclusion"),
    [
        ("# Aarau\nText.\n\n## Conclusion\nIt grew.\nMuch.\n\n## Sources\n- a", "It grew.\nMuch."),
        ("Text.\n\n**3. Conclusions**\nIt grew.", "It grew."),
        ("Text.\nConclusion: It grew.\nReferences:\n[1] a", "It grew."),
        ("## Conclusion\nEarly.\n## More\nText\n## Summary\nLate.", "Late."),
        ("One.\n\nTwo\nthree.\n\nSources: a, b", "Two\nthree."),
        ("## Conclusion\n\n## Sources\na", "## Conclusion"),
        ("Only this.", "Only this."),
        ("  \n ", None),
    ],
)
def test_the_conclusion_of_a_report(report: str, conclusion: str | None):
    assert rules.conclusion_of(report, "section") == conclusion
    assert rules.conclusion_of(report, "report") == (report.strip() or None)


# --------------------------------------------------------------------------------------------------------------- rubric
def test_a_rubric_is_the_base_and_k_minus_one_weighted_dimensions():
    assert rules.rubric_of(DEFAULT, NOW) == (RUBRIC, "")
    assert rules.rubric_of(rubric(("insight", "0.5")) + DEFAULT, NOW) == (RUBRIC, "")  # the last one counts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("insight 0.5", "no_dimensions"),
        ("<dimensions></dimensions>", "no_dimensions"),
        (DEFAULT.replace("<dim ", "and <dim "), "no_dimensions"),
        (DEFAULT.replace('"0.25"', "0.25"), "no_dimensions"),
        (DEFAULT.replace('weight="0.25"', 'weight="0.25" weight="0.3"'), "no_dimensions"),
        (DEFAULT.replace('weight="0.25"', 'why="so"'), "no_dimensions"),
        (rubric(("insight", "0.5")), "dimension_count"),
        (rubric(("insight", "0.5"), ("coherence", "0.2"), ("diversity", "0.2")), "dimension_count"),
        (rubric(("insight", "0.5"), ("beauty", "0.2")), "unknown_dimension"),
        (rubric(("insight", "0.5"), ("insight", "0.2")), "repeated_dimension"),
        (rubric(("factuality", "0.5"), ("coherence", "0.2"), base="insight"), "base_dimension"),
        (DEFAULT.replace('"factuality"', '"factuality" weight="0.3"'), "base_dimension"),
        (rubric(("insight", "0.51"), ("coherence", "0.2")), "weight"),
        (rubric(("insight", "0.09"), ("coherence", "0.2")), "weight"),
        (rubric(("insight", "-0.2"), ("coherence", "0.2")), "weight"),
        (rubric(("insight", "2e-1"), ("coherence", "0.2")), "weight"),
        (rubric(("insight", "nan"), ("coherence", "0.2")), "weight"),
        (DEFAULT.replace(' weight="0.25"', ""), "weight"),
    ],
)
def test_malformed_rubrics(text: str, reason: str):
    assert rules.rubric_of(text, NOW) == (None, reason) and reason in rules.RUBRIC_REASONS


def test_constraints_of_harness_and_scheduler():
    must = NOW.model_copy(
        update={
            "dimension_constraints": NOW.dimension_constraints.model_copy(
                update={"must_include": ("factuality", "diversity")}
            )
        }
    )
    assert rules.rubric_of(DEFAULT, must) == (None, "missing_dimension")
    assert rules.rubric_of(DEFAULT, NOW, Constraints((), ("insight",), ())) == (None, "scheduler")
    assert rules.rubric_of(DEFAULT, NOW, Constraints(("diversity",), (), ())) == (None, "scheduler")
    assert rules.rubric_of(DEFAULT, NOW, Constraints(("insight",), (), ("diversity",)))[0] == RUBRIC


# ---------------------------------------------------------------------------------------------------------- assessments
def only(text: str) -> Assessment:
    """The one assessment of a reply."""
    found = rules.assessments_of(text, 1, RUBRIC, 10)
    assert found is not None and len(found) == 1
    return found[0]


def test_an_assessment_has_points_for_every_dimension():
    one = only("Well. " + evaluations(assessment(1, GOOD)))
    assert one.scores == GOOD and one.verification == "said"
    assert one.citations == {"supported": 1, "unsupported": 0, "unknown": 0}
    both = rules.assessments_of(evaluations(assessment(1, GOOD), assessment(2, GOOD | {"insight": 0.5})), 2, RUBRIC, 10)
    assert both is not None and both[1].scores["insight"] == 0.5


GIVEN = assessment(1, GOOD)
SCORES = GIVEN[GIVEN.index("<scores>") : GIVEN.index("</scores>")]
CITED = '<citation source="Aarau" verdict="supported"/>'


def each(pattern: str, put: str) -> str:
    """The assessment with its elements <score> rewritten, one on each line."""
    return evaluations(GIVEN.replace(SCORES, "<scores>\n" + re.sub(pattern, put, SCORES[8:]) + "\n"))


POINTS = r'<score dim="(\w+)" value="(\d+)" reason="([^"]*)"/>'


@pytest.mark.parametrize(
    "text",
    [
        # how citations are left empty, and how our own search prints titles
        evaluations(GIVEN.replace(f"<citations>{CITED}</citations>", "<citations/>")),
        evaluations(GIVEN.replace(f"<citations>{CITED}</citations>", "<citations />")),
        evaluations(GIVEN.replace(CITED, "")),
        evaluations(GIVEN.replace(CITED, "none")),
        evaluations(GIVEN.replace('"Aarau"', '"Doc 1 (Title: "Ada Lovelace")"')),
        # a malformed citation
        evaluations(GIVEN.replace('"supported"', '"maybe"')),
        evaluations(GIVEN.replace(CITED, "<citation>Aarau")),
        evaluations(GIVEN.replace('verdict="supported"', "")),
        # quotation marks, brackets and entities in a reason
        each(POINTS, r'<score dim="\1" value="\2" reason="it says "this" and "that""/>'),
        each(POINTS, r'<score dim="\1" value="\2" reason="a "b" > c, <i>d</i>"/>'),
        each(POINTS, r'<score dim="\1" value="\2" reason="5 &lt; 6 &amp; &quot;so&quot;"/>'),
        each(POINTS, r'<score reason="\3" value="\2" dim="\1"/>'),
        each(POINTS, "<score dim='\\1' value='\\2' reason='it isn't'/>"),
        each(POINTS, r"<score dim=“\1” value=“\2” reason=“\3”/>"),
        each(POINTS, r'<score dim="\1" value=\2/>'),
        each(POINTS, r"<score dim='\1' value=\2>"),
        # points
        each(POINTS, r'<score dim="\1" value="\2/10"/>'),
        each(POINTS, r'<score dim="\1" value=" \2 / 10 "/>'),
        each(POINTS, r'<score dim="\1" value="\2.0 out of 10"/>'),
        # elements
        each(POINTS, r'<score dim="\1" value="\2"></score>'),
        each(POINTS, r'<score dim="\1" value="\2">\3</score>'),
        each(POINTS, r'<SCORE Dim="\1" VALUE="\2"/>'),
        each(POINTS, r'<score\n  dim = "\1"\n  value = "\2"\n/>'),
        each(POINTS, r'<score dim="\1" value="\2" confidence="0.9" max-value="10" reason="\3"/>'),
        each(POINTS, r'- <score dim="\1" value="\2"/>,'),
        each(POINTS, r'<!-- dim="\1" value="9" --><score dim="\1" value="\2"/>'),
        evaluations(GIVEN.replace("<scores>", '<scores><!-- <score dim="insight" value="9"/> -->')),
        evaluations(GIVEN.replace("<scores>", "<scores><![CDATA[").replace("</scores>", "]]></scores>")),
        evaluations(GIVEN.replace(">said<", "><![CDATA[said]]><")),
        evaluations(GIVEN.replace(">said<", '>it has <score dim="insight" value="10"/><')),  # text, not a score
        # names of dimensions, as the prompt shows them
        evaluations(GIVEN.replace('"factuality"', '"Factuality"').replace('"insight"', '" insight "')),
        evaluations(
            GIVEN.replace('"factuality"', '"factuality (base)"').replace('"insight"', '"insight (weight 0.5)"')
        ),
        # reports and sections
        evaluations("Report 1:\n" + GIVEN),
        evaluations("**Report 1**" + GIVEN + "That is all."),
        evaluations(GIVEN.replace('id="1"', 'id="Report 1"')),
        evaluations(GIVEN.replace('id="1"', "id='1' title='of Aarau'")),
        evaluations(GIVEN.replace("<scores>", "My points:\n<scores>")),
        evaluations(GIVEN.upper().replace('ID="1"', 'ID = "1"')),
        evaluations(GIVEN).replace("<", "\n <"),
        f"Here you are:\n```xml\n{evaluations(GIVEN)}\n```\nI hope that it helps.",
        evaluations(assessment(1, {"factuality": 1, "insight": 1, "coherence": 1})) + evaluations(GIVEN),
    ],
)
def test_assessments_are_read_in_any_form_that_leaves_no_doubt(text: str):
    one = only(text)
    assert one.scores == GOOD and one.verification and one.gap_analysis and one.citations is not None
    assert set(one.citations.values()) <= {0, 1}


def test_citations_are_counted_by_verdict_whatever_their_sources_are():
    cited = [
        '<citation source="Doc 1 (Title: "Ada Lovelace")" verdict="Supported"/>',
        "<citation verdict='unsupported' source='it's \"here\"'></citation>",
        '<citation source="a &amp; b" note="c" verdict=" UNKNOWN "/>',
        '<citation source="a" verdict="no"/>',
        '<citation source="verdict="supported"" verdict="supported"/>',  # either of the two
    ]
    one = only(evaluations(GIVEN.replace(CITED, "\n".join(cited))))
    assert one.citations == {"supported": 1, "unsupported": 1, "unknown": 1}
    assert only(evaluations(GIVEN.replace(f"<citations>{CITED}</citations>", ""))).citations is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        GIVEN,
        evaluations(),
        evaluations(GIVEN, GIVEN),
        evaluations(assessment(2, GOOD)),
        evaluations(GIVEN.replace(' id="1"', "")),
        evaluations(GIVEN.replace('id="1"', 'id="1 of 8"')),
        evaluations(GIVEN).removesuffix("</report_evaluations>"),
        evaluations(GIVEN.replace("</scores>", "")),
        evaluations(GIVEN.replace("</verification>", "")),
        evaluations(GIVEN.replace("</verification>", "</verification><verification>x</verification>")),
        evaluations(GIVEN.replace("scores>", "points>")),
        evaluations(GIVEN.replace("<score dim", "<points dim")),
        # points
        *(each(POINTS, rf'<score dim="\1" value="{value}"/>') for value in ("11", "-1", "+1", "10.01", "1e1", "")),
        *(each(POINTS, rf'<score dim="\1" value="{value}"/>') for value in ("nan", "inf", "high", "8-9", "7/5", "7/0")),
        each(POINTS, r'<score dim="\1" value="1\2/10"/>'),
        each(POINTS, r'<score dim="\1">\2</score>'),
        # dimensions
        evaluations(GIVEN.replace('dim="insight"', 'dim="beauty"')),
        evaluations(GIVEN.replace('dim="insight"', 'dim="factuality"')),
        evaluations(GIVEN.replace('dim="insight"', 'dim="Factuality"')),
        evaluations(GIVEN.replace('dim="insight"', 'dim="insight, coherence"')),
        evaluations(assessment(1, {"factuality": 8, "insight": 4})),
        evaluations(assessment(1, GOOD | {"beauty": 1})),
        # more than one value, as where text of a report is quoted
        each(POINTS, r'<score dim="\1" value="\2" value="10"/>'),
        each(POINTS, r'<score dim="\1" reason="it says: " value="10"/> so" value="\2"/>'),
        each(POINTS, r'<score reason="it says <score dim="insight" value="10"/>" dim="\1" value="\2"/>'),
        evaluations(GIVEN.replace("<scores>", '<scores><score dim="insight" value="10"/></scores><scores>')),
        evaluations(GIVEN.replace("<", "&lt;")),
    ],
)
def test_malformed_assessments(text: str):
    assert rules.assessments_of(text, 1, RUBRIC, 10) is None


@pytest.mark.parametrize(
    ("sections", "depth", "changes", "reason"),
    [
        (("verification", "gap_analysis"), 1, {}, ""),
        (("gap_analysis",), 1, {}, "no_verification"),
        (("gap_analysis",), 1, {"require_verification": False}, ""),
        (("verification",), 1, {}, "no_gap_analysis"),
        (("verification", "gap_analysis"), 0, {}, "shallow"),
        (("verification", "gap_analysis"), 1, {"min_tool_calls": 2}, "shallow"),
        (("verification", "gap_analysis"), 0, {"require_search": False, "min_tool_calls": 0}, ""),
    ],
)
def test_assessments_must_meet_the_harness(sections: tuple[str, ...], depth: int, changes: dict[str, Any], reason: str):
    """τ_s is the larger of the card's and the harness'; here the card's is 0."""
    now = meta_harness.default(card(harness=changes))
    one = only(evaluations(assessment(1, GOOD, sections)))
    assert rules.unmet(one, depth, now, 0) == reason
    assert rules.required_searches(now, 5) == 5


# ------------------------------------------------------------------------------------------------------------ scheduler
def test_the_scheduler_requires_unused_dimensions_and_avoids_inconsistent_ones():
    cfg = card(scheduler={"patience": 2, "min_uses": 2, "decay": 0.5, "margin": 0.1, "hints": 1})
    scheduler, table = score.GAME.start(cfg)["scheduler"], options(cfg).scheduler
    assert state.get_constraints(table, scheduler, NOW) == Constraints((), (), ("citation_effectiveness",))
    other = Rubric("factuality", {"insight": 0.2, "diversity": 0.2})
    for used, agreement in ((RUBRIC, 0.8), (other, 0.2), (other, 0.2)):
        scheduler = state.update_stats(table, scheduler, [RubricUse(used.dimensions, agreement)])
    assert scheduler["mean"] == pytest.approx(0.35)  # 0.8, 0.5, 0.35
    assert scheduler["dimensions"]["diversity"] == {"uses": 2, "last": 3, "consistency": pytest.approx(0.2)}
    assert scheduler["dimensions"]["insight"]["uses"] == 3
    assert state.get_constraints(table, scheduler, NOW) == Constraints(
        ("citation_effectiveness",), ("diversity",), ("completeness",)
    )

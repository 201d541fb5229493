from __future__ import annotations

from pathlib import Path

import pytest

from scope_jax.games.ssp.options import SSPSection
from scope_jax.text import templates

SHIPPED = Path(SSPSection().prompts)


def write(folder: Path, text: str) -> Path:
    (folder / "role.txt").write_text(text, encoding="utf-8")
    return folder


def test_filled_in_text_is_not_substituted_again(tmp_path: Path):
    folder = write(tmp_path, '{question} {"json": 1} {}\n')
    text = templates.load(folder, "role", known=("question", "n"), required=("question",))
    assert templates.fill(text, {"question": "{n} {question}", "n": 3}) == '{n} {question} {"json": 1} {}'


def test_prompts_that_are_held_stay_as_they_are(tmp_path: Path):
    """Whoever edits, removes or adds one."""
    folder = write(tmp_path, "\ufefffirst\r\nline {n}")
    templates.hold(folder)
    write(folder, "edited {n}")
    write_system = folder / "role.system.txt"
    write_system.write_text("added")
    read = {"known": ("n",), "required": ("n",)}
    assert templates.load(folder, "role", **read) == templates.load(str(folder), "role", **read) == "first\nline {n}"
    assert templates.system_files(folder, ["role"]) == ()
    (folder / "role.txt").unlink()
    assert templates.load(folder, "role", **read) == "first\nline {n}"
    templates.hold(folder)  # by the next run
    assert templates.system_files(folder, ["role"]) == (write_system,)
    with pytest.raises(templates.PromptError, match="does not exist"):
        templates.load(folder, "role", **read)


def test_a_missing_file_and_wrong_variables_each_give_one_clear_error(tmp_path: Path):
    with pytest.raises(templates.PromptError, match=r"role\.txt: the prompt file does not exist"):
        templates.load(tmp_path, "role", known=(), required=())
    folder = write(tmp_path, "{anwser}")
    with pytest.raises(
        templates.PromptError, match=r"unknown variable \{anwser\}; this prompt may use \{answer\}, \{n\}"
    ):
        templates.load(folder, "role", known=("answer", "n"), required=("answer",))
    folder = write(tmp_path, "nothing")
    with pytest.raises(templates.PromptError, match=r"the variable \{answer\} is missing"):
        templates.load(folder, "role", known=("answer",), required=("answer",))


@pytest.mark.parametrize(
    ("name", "variables", "tags"),
    [
        (
            "proposer",
            {"answer", "n", "search", "results", "example1", "example2", "example3"},
            ("think", "question"),
        ),
        ("solver", {"question", "search", "results"}, ("think", "answer")),
        ("rag", {"materials", "question"}, ()),
        ("judge", {"question", "prediction", "ground_truth"}, ()),
    ],
)
def test_shipped_prompts_have_the_variables_and_tags_of_the_paper(
    name: str, variables: set[str], tags: tuple[str, ...]
):
    text = templates.load(SHIPPED, name, known=tuple(variables), required=tuple(variables))
    assert templates.variables(text) == variables
    assert all(f"<{tag}>" in text and f"</{tag}>" in text for tag in tags)


def test_shipped_prompts_ask_for_the_output_the_parsers_read():
    assert "'Answer:'" in templates.load(SHIPPED, "rag", known=("materials", "question"), required=())
    words = templates.load(SHIPPED, "judge", known=("question", "prediction", "ground_truth"), required=())
    assert '"Correct" or "Wrong"' in words
    examples = templates.load(SHIPPED, "examples", known=(), required=()).splitlines()
    assert len(examples) == len(set(examples)) >= 6 and all(line.endswith("?") for line in examples)

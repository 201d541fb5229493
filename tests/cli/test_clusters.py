"""`scope-jax index CARD --clusters`: from a card to clusters, a second call, errors, real passages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.config import RowsSection
from scope_jax.config.suites import load_suite
from scope_jax.data.sources import Source, load
from scope_jax.games import load_card
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.run.clustering import exam_documents, exam_texts
from tests.retrieval import tiny_encoders
from tests.retrieval.clustering import bytes_of, documents, rows_of, sentence, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A card over 62 documents, one of which contains an exam's question and one of which is too short."""
    asked = f"{sentence('stars', 70)} so how many rings has the planet behind the bright comet of nineteen eleven"
    extra = [{"id": "asked", "text": asked}, {"id": "short", "text": "Nothing."}]
    corpus = write(tmp_path / "corpus.jsonl", [*documents(15), *extra])
    exam = write(tmp_path / "exam.jsonl", [
        {"question": "So how many rings has the planet behind the bright comet of nineteen eleven?", "answers": ["two"]}
    ])  # fmt: skip
    card = tmp_path / "card.toml"
    card.write_text(f"""
extends = "{ROOT / "configs/ssp/atlas.toml"}"
[[evaluate.sets]]
name = "exam"
path = "{exam}"
[clusters]
folder = "{tmp_path / "out"}"
shingle = 3
permutations = 64
dim = 256
documents = 6
min_documents = 3
max_documents = 12
[[clusters.sources]]
path = "{corpus}"
""")
    return card


def index(card: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["index", str(card), "--clusters", *words])


def test_clusters_of_a_card_and_a_second_call(card: Path, tmp_path: Path) -> None:
    done = index(card, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["read"], told["kept"]) == (62, 60) and told["folder"] == str(tmp_path / "out")
    dropped = {reason: number for reason, number in told["dropped"].items() if number}
    assert dropped == {"evaluation_question": 1, "too_short": 1}
    rows = rows_of(tmp_path / "out")
    assert told["clusters"] == len(rows) and {row["family"] for row in rows} == {"qa", "choice"}
    assert load(Source(str(tmp_path / "out" / "clusters.jsonl"), "clusters", RowsSection())) == rows  # as a game does
    before = bytes_of(tmp_path / "out")
    again = index(card)
    assert f"the clusters in {tmp_path / 'out'} are complete; nothing to do" in again.stderr
    assert "dropped evaluation_question          1" in again.stdout
    assert bytes_of(tmp_path / "out") == before
    assert index(card, "--rebuild").exit_code == 0
    assert bytes_of(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("clusters.sources=[]", "the card has no clusters.sources; add it"),
        ('clusters.sources=[{path="nowhere.jsonl"}]', "nowhere.jsonl does not exist"),
        ("clusters.min_characters=5000", "0 documents are left (62 too_short)"),
        ("clusters.documents=50", "documents is 50; it must be between min_documents and max_documents"),
        ("clusters.max_documents=5", "it must be between"),
        ("clusters.min_documents=6", None),
        ("clusters.min_documents=7", "documents is 6"),
        ("clusters.shortest_phrase=14", "shortest_phrase must be at most phrase, 13"),
        ("clusters.similarity=1.0", "at most 0.95"),
        ('clusters.encoder.checkpoint="nowhere"', "nowhere"),
    ],
)
def test_bad_settings_give_one_clear_error(card: Path, tmp_path: Path, override: str, said: str | None) -> None:
    if said is None:
        assert load_card(card, [override]).clusters.min_documents == 6
        return
    done = index(card, "--set", override)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("scope-jax: ")]) == 1
    out = tmp_path / "out"
    assert not out.exists() or [path.name for path in out.iterdir()] == [".lock"]


def test_a_card_without_clusters_gives_a_clear_error() -> None:
    done = index(ROOT / "configs/ssp/atlas.toml")
    assert done.exit_code == 2 and "the card has no clusters.folder; add it" in done.stderr


def test_other_settings_for_an_existing_folder(card: Path, tmp_path: Path) -> None:
    assert index(card).exit_code == 0
    done = index(card, "--set", "clusters.seed=1")
    assert done.exit_code == 2 and "were built with another value of seed (0, now 1)" in done.stderr


def test_a_change_of_embedding_model_is_detected(card: Path, tmp_path: Path) -> None:
    first, second = (tiny_encoders.write_bert(tmp_path / f"encoder-{seed}", seed) for seed in (0, 1))
    words = ("--set", "clusters.encoder.max_tokens=16", "--set")
    done = index(card, *words, f"clusters.encoder.checkpoint={first}")
    assert done.exit_code == 0, done.output
    assert sum(len(row["documents"]) for row in rows_of(tmp_path / "out")) == 60
    assert index(card, *words, f"clusters.encoder.checkpoint={first}").exit_code == 0
    other = index(card, *words, f"clusters.encoder.checkpoint={second}")
    assert other.exit_code == 2 and "were built with another value of encoder" in other.stderr


def test_clusters_are_bounded_by_tokens_of_the_cards_model(card: Path, tmp_path: Path) -> None:
    cfg = load_card(card)
    tokenizer = Tokenizer.load(cfg.model.checkpoint)
    for most in (None, 900):
        words = () if most is None else ("--set", f"clusters.max_tokens={most}")
        done = index(card, "--json", "--rebuild", *words)
        assert done.exit_code == 0, done.output
        sizes = [
            sum(len(tokenizer.encode(f"{one['title']}\n{one['text']}")) for one in row["documents"])
            for row in rows_of(tmp_path / "out")
        ]
        assert (max(sizes) > 900) is (most is None)
    assert json.loads(done.stdout.splitlines()[-1])["kept"] == 60  # smaller clusters, nothing left out
    done = index(card, "--rebuild", "--set", "clusters.max_tokens=50")
    assert done.exit_code == 2 and "no 3 documents of a cluster have at most 50 tokens together" in done.stderr


def test_no_document_repeats_a_benchmark_of_the_paper(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MuSiQue is no set of this card; its question, and the documents of its context, are held out all the same."""
    (tmp_path / "data/exams").mkdir(parents=True)
    title = documents(15)[0]
    asked = "so how many rivers meet in the delta below the old bridge of the northern valley"
    context = f"Passage 1:\n{title['title']}\n{title['text']}\n\nPassage 2:\nOther\nSomething else."
    exam = {"question": asked, "answers": ["two"], "context": context}
    write(tmp_path / "data/exams/musique-long.jsonl", [exam])
    corpus = write(
        tmp_path / "more.jsonl", [*documents(15), {"id": "asked", "text": f"{sentence('music', 80)} {asked}"}]
    )
    monkeypatch.chdir(tmp_path)
    words = ("--json", "--set", f'clusters.sources=[{{path="{corpus}"}}]', "--rebuild")
    before = json.loads(index(card, *words).stdout.splitlines()[-1])["dropped"]
    done = index(card, *words, "--set", 'clusters.benchmarks=["musique-long"]')
    assert done.exit_code == 0, done.output
    after = json.loads(done.stdout.splitlines()[-1])["dropped"]
    assert (before["evaluation_question"], before["evaluation_document"]) == (0, 0)
    assert (after["evaluation_question"], after["evaluation_document"]) == (1, 1)
    done = index(card, *words, "--set", 'clusters.benchmarks=["musiqe"]')
    assert done.exit_code == 2 and "there is no exam 'musiqe'" in done.stderr


def test_documents_of_a_context_in_any_form() -> None:
    assert exam_documents({"context": "Passage 1:\na b\n\nPassage 2:\nc"}, "x", {}) == ["a b", "c"]
    assert exam_documents({"context": ["a", {"title": "t", "text": "b"}, {"contents": "c"}]}, "x", {}) == [
        "a",
        "b",
        "c",
    ]
    assert exam_documents({"question": "What?"}, "x", {}) == []


def test_the_real_card_builds_its_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small file in the place of the hub's, small exams and models, and no other change."""
    cfg = load_card(ROOT / "configs/spell/qwen2.5-7b-instruct.toml")
    for one in cfg.evaluate.sets:
        (tmp_path / one.path).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / one.path, [{"question": "Who?", "answers": ["Ada"], "context": "Nothing."}])
    for name in {*cfg.clusters.benchmarks}:
        path = tmp_path / load_suite(name).path
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, [{"question": "Who?", "answers": ["Ada"], "context": "Nothing."}])
    pages = write(tmp_path / "pages.jsonl", [{"content": one["text"], "score": 1.0} for one in documents(15)])
    columns = 'columns={text="content", quality="score"}'  # those of the card, as is the rest
    assert cfg.clusters.sources[0].columns == {"text": "content", "quality": "score"}
    assert cfg.clusters.encoder.checkpoint is not None
    tiny_encoders.write_bert(tmp_path / cfg.clusters.encoder.checkpoint, 0)
    (tmp_path / cfg.model.checkpoint).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / cfg.model.checkpoint).symlink_to(ROOT / "assets/atlas/spell/base")
    monkeypatch.chdir(tmp_path)
    words = ("--set", "clusters.encoder.max_tokens=16", "--set", f'clusters.sources=[{{path="{pages}", {columns}}}]')
    done = index(ROOT / "configs/spell/qwen2.5-7b-instruct.toml", "--json", *words)
    assert done.exit_code == 0, done.output
    assert cfg.clusters.folder is not None
    assert {row["family"] for row in rows_of(tmp_path / cfg.clusters.folder)} == {"qa", "choice"}
    assert json.loads(done.stdout.splitlines()[-1])["kept"] == 60


def test_questions_and_answers_of_an_exam_in_any_form() -> None:
    row = {"problem": "What?", "answer": "this", "aliases": ["that", "those"]}
    assert exam_texts(row, "x", {}) == ["What?", "this", "that", "those"]
    talk = {"prompt": [{"role": "user", "content": "Hello."}, {"role": "user", "content": "Why?"}], "answers": None}
    assert exam_texts(talk, "x", {}) == ["Hello.", "Why?"]
    assert exam_texts({"q": {"text": "Where?"}, "a": 3}, "x", {"question": "q.text", "answers": "a"}) == ["Where?"]


def test_real_passages(card: Path, tmp_path: Path, shared_data: Path) -> None:
    with (shared_data / "corpus/passages.jsonl").open() as file:
        head = [next(file).rstrip("\n") for _ in range(200)]
    corpus = write(tmp_path / "real.jsonl", [*head, *head[:3]])
    source = f'clusters.sources=[{{path="{corpus}"}}, {{path="{shared_data / "longdoc/docs.jsonl"}"}}]'
    done = index(card, "--json", "--set", source)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["read"] == told["kept"] + sum(told["dropped"].values()) == 200 + 3 + 24
    assert told["dropped"]["duplicate"] >= 3 and told["dropped"]["too_long"] >= 10
    assert 3 <= told["documents_per_cluster"]["smallest"] <= told["documents_per_cluster"]["largest"] <= 12

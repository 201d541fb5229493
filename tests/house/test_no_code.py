"""Nothing from a folder, hub, index, checkpoint or data set runs as code, and nobody is asked whether it may.

Code lies in every kind of file (planted.py), and all commands that read such files are run. A card is code: it may name
Python files (docs/reliability.md).
"""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformers import dynamic_module_utils
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.data.rows import DataError, hub_table
from scope_jax.games import load_card
from scope_jax.models.decoder import adapter
from scope_jax.models.files import peft, weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.run import checkpoint, indexing
from scope_jax.run.checkpoint_writer import Checkpoints
from tests.house import test_checkpoint as saved
from tests.house.planted import AUTO, KEYS, MODULE, Reports, array_file, plant, torch_file
from tests.retrieval.tiny_encoders import write_bert, write_modules
from tests.shallow import shallow
from tests.train import runs

ROOT = Path(__file__).parents[2]
ATLAS = ROOT / "assets" / "atlas"
BASE = ATLAS / "ssp" / "base"
CARD = str(ROOT / "configs" / "ssp" / "atlas.toml")
FEW = f'evaluate.sets=[{{name="few", path="{ATLAS / "questions_held_out.jsonl"}", limit=2}}]'
SMALL = ("rollout.slots=8", "rollout.max_length=256", "retrieval.dim=256", FEW)


@pytest.fixture
def reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> Iterator[Reports]:
    """Asserts at the end that nothing ran, and that no question was asked: the answer would have been yes. Notes how
    many files with code there were."""
    reports, asked = Reports(tmp_path / "reports"), []

    def yes(*question: object) -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr(dynamic_module_utils, "input", yes, raising=False)
    yield reports
    record_property("planted", reports.planted(tmp_path))
    record_property("ran", len(reports.ran()))
    assert (reports.ran(), asked) == ([], [])


def run(*words: object, sets: tuple[str, ...] = (), typed: str = "") -> Result:
    given = [part for one in sets for part in ("--set", one)]
    return CliRunner().invoke(app, [*map(str, words), *given], input=typed)


def done(*words: object, sets: tuple[str, ...] = (), typed: str = "") -> Result:
    result = run(*words, sets=sets, typed=typed)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(*words: object, sets: tuple[str, ...] = ()) -> str:
    """The one sentence."""
    result = run(*words, sets=sets)
    assert result.exit_code == 2 and "Traceback" not in result.output, (result.output, result.exception)
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    return sentence


# ---------------------------------------------------------------------------------------- what is planted does run
def test_every_piece_of_code_runs_where_it_is_trusted(tmp_path: Path) -> None:
    """Otherwise the rest would show nothing."""
    reports = Reports(tmp_path / "reports")
    exec(reports.code("code"))
    pickle.loads(reports.pickled("pickle"))
    (tmp_path / "a.npy").write_bytes(array_file(reports.object("npy")))
    (tmp_path / "a.npz").write_bytes(array_file(reports.object("npz"), zipped=True))
    np.load(tmp_path / "a.npy", allow_pickle=True)
    np.load(tmp_path / "a.npz", allow_pickle=True)["a"]
    assert reports.ran() == ["code", "npy", "npz", "pickle"]


def test_torch_runs_what_is_planted(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reports = Reports(tmp_path / "reports")
    (tmp_path / "model.bin").write_bytes(reports.pickled("bin"))
    with pytest.raises(RuntimeError, match="magic"):
        torch.load(tmp_path / "model.bin", weights_only=False)
    assert reports.ran() == ["bin"]


def test_transformers_runs_what_is_planted_if_it_is_told_to(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    reports = Reports(tmp_path / "reports")
    folder = custom(tmp_path, reports, "AutoProcessor")
    with pytest.raises(AttributeError):
        AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert reports.ran()


# -------------------------------------------------------------------------------- folders that are good beside the code
@pytest.fixture
def model(tmp_path: Path, reports: Reports) -> Path:
    folder = Path(shutil.copytree(shallow("ssp"), tmp_path / "model"))
    plant(folder, reports)
    return folder


def test_a_model_is_checked_new_cards_are_written_and_prompts_are_read(model: Path, tmp_path: Path, reports) -> None:
    prompts = Path(shutil.copytree(ATLAS / "prompts" / "ssp", tmp_path / "prompts"))
    plant(prompts, reports)
    sets = (f"model.checkpoint={model}", f"ssp.prompts={prompts}")
    done("check", CARD, sets=sets)
    answers, corpus = ATLAS / "answers.jsonl", ATLAS / "corpus.jsonl"
    card = tmp_path / "card.toml"
    done("new", card, "--game", "ssp", "--model", model, "--data", answers, "--corpus", corpus, sets=(sets[1],))
    done("check", card)


def test_a_model_answers_in_chat_and_exams_and_is_converted(model: Path, tmp_path: Path, reports: Reports) -> None:
    talked = done("chat", model, "--card", CARD, "--max-tokens", 4, sets=SMALL, typed="Hello\ny\n/quit\n")
    assert talked.stdout.strip()
    found = tmp_path / "found.jsonl"
    done("eval", model, "--card", CARD, "--records", found, sets=SMALL)
    assert len(found.read_text().splitlines()) == 2
    done("convert", model, tmp_path / "converted", "--to", "orbax")
    plant(tmp_path / "converted", reports, inside=False, into=False)
    done("convert", tmp_path / "converted", tmp_path / "back", "--to", "hf")


@pytest.mark.slow  # chat and exams load the same folder
def test_a_model_is_served(model: Path) -> None:
    import httpx

    from scope_jax.serving.assemble import served
    from tests.serving.world import serving

    options: dict[str, Any] = {"policy": None, "search": True, "name": "planted", "grace": 1.0, "tell": print}
    with served(model, Path(CARD), SMALL, **options) as ready, serving(ready) as told:
        asked = {"model": "planted", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        assert httpx.post(f"{told['http']}/chat/completions", json=asked, timeout=60).status_code == 200


@pytest.mark.slow
def test_an_adapter_is_loaded(tmp_path: Path, reports: Reports) -> None:
    base = shallow("ssp")
    cfg = weights.load_config(base)
    kind = adapter.Adapter(2, 4.0, ("q_proj",))
    factors = jax.tree.map(lambda param: jnp.zeros(param.shape), adapter.declare_factors(cfg, kind))
    peft.save(tmp_path / "adapter", cfg, kind, factors, str(base))
    plant(tmp_path / "adapter", reports)
    talked = done(
        "chat",
        tmp_path / "adapter",
        "--card",
        CARD,
        "--max-tokens",
        2,
        sets=(*SMALL, f"model.checkpoint={base}"),
        typed="Hello\n",
    )
    assert talked.stdout.strip()


def test_an_encoder_an_index_and_a_search(tmp_path: Path, reports: Reports) -> None:
    encoder = write_bert(tmp_path / "encoder")
    write_modules(encoder, {"pooling_mode_mean_tokens": True})
    plant(encoder, reports)
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": f"d{i}", "title": f"t{i}", "text": f"the river number {i}"} for i in range(40)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = f'corpus="{corpus}", index="{tmp_path / "index"}", kind="scann", encoder={{checkpoint="{encoder}"'
    sets = (f"retrieval={{{table}, max_tokens=32, batch=16}}}}",)
    done("index", CARD, sets=sets)
    plant(tmp_path / "index", reports, into=False)
    done("index", CARD, sets=sets)
    retrieval = load_card(CARD, sets).retrieval
    assert retrieval is not None
    search = indexing.open_or_build_index(retrieval, tmp_path, None)
    assert [len(hits) for hits in search(["the river"], 3)] == [3]


@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpoint_is_loaded_or_refused(inside: bool, tmp_path: Path, reports: Reports) -> None:
    """Beside its parts anything may lie; in them, where orbax would look for it, nothing that was not written there."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", saved.card())
    states = {"actor": saved.state(1)}
    checkpoints.save(1, states, {"pool": [1]})
    checkpoints.wait()
    folder = checkpoint.locate(tmp_path)
    plant(folder, reports, inside=inside, into=False)
    if not inside:
        assert checkpoint.load(folder, saved.targets(states)).memory == {"pool": [1]}
        return
    with pytest.raises(checkpoint.CheckpointError, match="was not written with it"):
        checkpoint.load(folder, saved.targets(states))


@pytest.mark.slow
def test_a_run_is_resumed_reported_examined_and_exported(tmp_path: Path, reports: Reports) -> None:
    small = ("train.batch_size=4", "ssp.solver.samples=2", "train.save_every=1", "learner.buckets=[512]", *SMALL[:1])
    begin = partial(done, "train", CARD, "--run", tmp_path / "run")
    begin(sets=("train.steps=1", FEW, *small))
    for place in (tmp_path / "run", *(path for path in (tmp_path / "run").rglob("*") if path.is_dir())):
        if not {"states", "memory", "meta"} & {*place.relative_to(tmp_path).parts}:
            plant(place, reports, inside=False, into=False)
    begin(sets=("train.steps=2", FEW, *small))
    done("report", tmp_path / "run")
    done("eval", tmp_path / "run", sets=(FEW,))
    done("export", tmp_path / "run", tmp_path / "export")
    assert 2 in runs.saved(tmp_path / "run")


# ------------------------------------------------------------------------------------------------- folders that need it
VOCABULARY = {"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "#version: 0.2\n"}
CLASSES = (
    *(f"Auto{name}" for name in AUTO),
    *("Evil", "EvilTokenizer", "evil.Evil", "TransfoXLTokenizer", "RagRetriever", "RagTokenizer", "pipeline"),
    *("Qwen2VLProcessor", "LlavaProcessor", "ProcessorMixin", "PreTrainedModel", "EncoderDecoderModel", "__loader__"),
)


def custom(
    tmp_path: Path, reports: Reports, named: str, place: str = "tokenizer_config.json", kind: str = MODULE
) -> Path:
    """A tokenizer that transformers would load by a class of a file's choice, with code for each."""
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(reports.code("custom"))
    for name, content in VOCABULARY.items():
        (folder / name).write_text(content)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **KEYS}))
    (folder / "tokenizer_config.json").write_text(json.dumps(KEYS))
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps(KEYS | {"processor_class": "Evil", "image_processor_type": "Evil"}))
    content = json.loads((folder / place).read_text())
    (folder / place).write_text(json.dumps(content | {"tokenizer_class": named}))
    return folder


@pytest.mark.parametrize(
    ("named", "place", "kind"),
    [
        *((named, "tokenizer_config.json", MODULE) for named in CLASSES),
        *(
            pytest.param(named, "config.json", "qwen2", marks=[] if named == "Evil" else pytest.mark.slow)
            for named in CLASSES
        ),
    ],
)
def test_a_tokenizer_of_the_folders_own_code_is_refused(
    named: str, place: str, kind: str, tmp_path: Path, reports: Reports
) -> None:
    folder = custom(tmp_path, reports, named, place, kind)
    with pytest.raises(
        ValueError, match="not a fast tokenizer of transformers, and code of a folder is never run"
    ) as said:
        Tokenizer.load(folder)
    assert "\n" not in str(said.value)


def test_a_model_of_the_folders_own_code_is_refused(tmp_path: Path, reports: Reports) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    plant(folder, reports)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": MODULE, "architectures": ["Evil"]}))
    assert "Evil" in refused("chat", folder)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in refused("chat", BASE, sets=(f"model.tokenizer={folder}",))


PICKLED = ("pytorch_model.bin", "model.pt", "consolidated.00.pth", "flax_model.msgpack")
FIRST = (("pytorch_model.bin", "pickle"), ("consolidated.00.pth", "zip"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if (name, kind) in FIRST else pytest.mark.slow)
        for name in PICKLED
        for kind in ("pickle", "zip")
    ],
)
def test_pickled_weights_are_refused(name: str, kind: str, tmp_path: Path, reports: Reports) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    content = reports.pickled("weights")
    (folder / name).write_bytes(content if kind == "pickle" else torch_file(content))
    for words in (
        ("chat", folder),
        ("convert", folder, tmp_path / "out", "--to", "hf"),
        ("eval", folder, "--card", CARD),
    ):
        assert "safetensors" in refused(*words, sets=(FEW,) if words[0] == "eval" else ())


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_pickled_adapters_are_refused(name: str, tmp_path: Path, reports: Reports) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(BASE), **KEYS}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / name).write_bytes(reports.pickled("adapter"))
    assert "safetensors" in refused("chat", folder)


def test_a_module_of_an_encoder_that_is_code_is_refused(tmp_path: Path, reports: Reports) -> None:
    folder = write_bert(tmp_path / "encoder")
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{MODULE}.Evil"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / f"{MODULE}.py").write_text(reports.code("module"))
    table = f'{{corpus="{ATLAS / "corpus.jsonl"}", index="{tmp_path / "index"}", encoder={{checkpoint="{folder}"}}}}'
    assert "modules.json" in refused("index", CARD, sets=(f"retrieval={table}",))


# ------------------------------------------------------------------------------------------------------------ data sets
def data_sets(reports: Reports) -> dict[str, dict[str, bytes]]:
    """Files of data sets by name: each with code where a reader of the datasets library could find some."""
    code, content = reports.code("script").encode(), reports.pickled("data")
    readme = "---\n{}\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"
    danger = f"!!python/object/apply:pathlib.Path.touch [{reports.folder / 'yaml'}]"
    row = b'{"text": "a"}\n'
    return {
        "script": {"script.py": code, "train.jsonl": row},
        "named": {"README.md": readme.format("builder_name: pandas", "train.pkl").encode(), "train.pkl": content},
        "pickle": {"train.pkl": content},
        "yaml": {"README.md": f"---\nconfigs: {danger}\n---\n".encode(), "train.jsonl": row},
        "numpy": {"train.npy": array_file(reports.object("npy")), "train.npz": array_file(reports.object("npz"), True)},
        "torch": {"train.pt": torch_file(content), "train.bin": content},
        "table": {"train.h5": content, "train.arrow": content, "train.parquet": content},
        "eval": {"train.eval": content},
        "zip": {"train.zip": torch_file(content)},
        "feature": {
            "README.md": b"---\ndataset_info:\n  features:\n  - name: a\n    dtype: \"__import__('os')\"\n---\n",
            "train.jsonl": row,
        },
    }


SETS = ("script", "named", "pickle", "yaml", "numpy", "torch", "table", "eval", "zip", "feature")


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_of_the_hub_runs_nothing(name: str, tmp_path: Path, reports: Reports, monkeypatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / name
    folder.mkdir()
    assert tuple(data_sets(reports)) == SETS
    for file, content in data_sets(reports)[name].items():
        (folder / file).write_bytes(content)
    with pytest.raises(DataError) as said:
        hub_table(str(folder), "train", None)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz", "parquet", "pkl", "py", "npz"])
def test_a_file_of_data_runs_nothing(suffix: str, tmp_path: Path, reports: Reports) -> None:
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes(reports.code("file").encode() if suffix == "py" else reports.pickled("file"))
    assert str(path) in refused("data", "hotpotqa", tmp_path / "out.jsonl", "--source", path)


# ------------------------------------------------------------------------------------------------------------ templates
def templates(reports: Reports) -> list[str]:
    ways = [f"open({str(reports.folder / 'template')!r}, 'w')"]
    touch = f"__import__('pathlib').Path({str(reports.folder / 'template')!r}).touch()"
    return [
        f"{{{{ cycler.__init__.__globals__.__builtins__.{ways[0]} }}}}",
        f"{{{{ lipsum.__globals__['__builtins__']['eval']({touch!r}) }}}}",
        f"{{{{ raise_exception.__globals__['__builtins__']['eval']({touch!r}) }}}}",
        f"{{{{ (messages|attr('__class__')).__mro__[1].__subclasses__() }}}}{{{{ {touch} }}}}",
        f"{{{{ messages.__class__.__mro__[-1].__subclasses__()[0].__init__.__globals__['x'] }}}}{{{{ {touch} }}}}",
        f"{{{{ '{{0.__class__.__init__.__globals__}}'.format(raise_exception) }}}}{{{{ {touch} }}}}",
        f"{{{{ ''['__cla' ~ 'ss__']['__mro__'][1]['__subclasses__']() }}}}{{{{ {touch} }}}}",
        f"{{% import '{MODULE}.py' as evil %}}{{{{ evil }}}}",
        f"{{% include '{MODULE}.py' %}}",
        f"{{{{ self.__init__.__globals__ }}}}{{{{ {touch} }}}}",
        f"{{{{ tojson.__globals__ }}}}{{{{ namespace.__init__.__globals__.os.system('touch x') }}}}{{{{ {touch} }}}}",
        f"{{% set x = messages.append %}}{{{{ x({{}}) }}}}{{{{ {touch} }}}}",
        f"{{% for f in [].__class__.__base__.__subclasses__() %}}{{{{ f({touch!r}) }}}}{{% endfor %}}",
    ]


@pytest.mark.parametrize(
    ("number", "form"),
    [
        pytest.param(number, form, marks=[] if form == "jinja" or number == 0 else pytest.mark.slow)
        for form in ("jinja", "json", "card")
        for number in range(13)
    ],
)
def test_a_template_runs_nothing(number: int, form: str, tmp_path: Path, reports: Reports) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    (folder / f"{MODULE}.py").write_text(reports.code("template"))
    template = templates(reports)[number]
    (folder / "chat_template.jinja").unlink()
    sets = [f"model.checkpoint={folder}"]
    if form == "jinja":
        (folder / "chat_template.jinja").write_text(template)
    elif form == "json":
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    else:
        (tmp_path / "own.jinja").write_text(template)
        sets.append(f"model.chat_template={tmp_path / 'own.jinja'}")
    result = run("check", CARD, sets=tuple(sets))
    assert isinstance(result.exception, SystemExit | None) and "Traceback" not in result.output
    tokenizer = Tokenizer.load(folder, chat_template=template if form == "card" else None)
    with contextlib.suppress(ValueError):  # of the sandbox, in one sentence
        tokenizer.encode_chat([{"role": "user", "content": "Hello"}])

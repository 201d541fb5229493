"""Code in every kind of file that a folder from elsewhere may hold, for test_no_code.py.

Each piece, if anything runs it, makes a file in one folder.
"""

from __future__ import annotations

import io
import json
import marshal
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

MODULE = "evil"
CODE = (  # what transformers, datasets, sentence-transformers or Python itself would import
    *(f"{MODULE}.py", "modeling_qwen3.py", "configuration_qwen3.py", "tokenization_qwen2.py", "handler.py", "setup.py"),
    *(
        "__init__.py",
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "json.py",
        "numpy.py",
        "jax.py",
        "torch.py",
    ),
    *("custom_generate.py", "pipeline.py", "1_Pooling.py", "game.py", "train.py", "scope_jax.py"),
)
PICKLES = (  # under the names of files that some library unpickles
    *("pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "consolidated.00.pth", "model.pt", "model.pth"),
    *("adapter_model.bin", "adapter_model.pt", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"),
    *("scann_docids.pkl", "index.pkl", "vocab.pkl", "memory.pkl", "corpus.pickle", "cache.joblib", "state.msgpack"),
    *("flax_model.msgpack", "tf_model.h5", "lexical.pkl", "seal.pkl", "checkpoint", "data.pkl", "shelf.db"),
)
AUTO = ("Config", "Tokenizer", "Processor", "Model", "ModelForCausalLM", "ImageProcessor", "FeatureExtractor")
# What JSON files of the hub may say to have a module of the folder imported: transformers, PEFT, diffusers.
KEYS = {
    "auto_map": {f"Auto{name}": f"{MODULE}.Evil" for name in AUTO} | {"AutoTokenizer": [f"{MODULE}.Evil"] * 2},
    "auto_mapping": {"base_model_class": "Evil", "parent_library": MODULE},
    "custom_pipelines": {"text-generation": {"impl": f"{MODULE}.Evil", "pt": ["AutoModelForCausalLM"]}},
    "custom_generate": MODULE,
    "trust_remote_code": True,
}


class Reports:
    """Where pieces of code report that they ran; `folder` is empty as long as none did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def ran(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def planted(self, folder: Path) -> int:
        """The number of files in a folder that hold a piece of code: it says where to report."""
        marks = [part.encode() for part in self.folder.parts[-2:]]  # in a pickle they are apart
        files = [path for path in folder.rglob("*") if path.is_file()]
        return sum(all(mark in content for mark in marks) for content in map(Path.read_bytes, files))

    def code(self, name: str) -> str:
        """A module that reports, with the class that the JSON files name."""
        names = " = ".join(("Evil", *(f"Evil{one}" for one in AUTO)))
        return f"import pathlib\npathlib.Path({str(self.folder / name)!r}).touch()\n{names} = type('Evil', (), {{}})\n"

    def pickled(self, name: str) -> bytes:
        return pickle.dumps(self.object(name))

    def object(self, name: str) -> Any:
        return _Reporting(self.folder / name)


class _Reporting:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def torch_file(content: bytes) -> bytes:
    """A file as torch.save writes it: a pickle in a zip."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("archive/data.pkl", content)
        file.writestr("archive/version", "3\n")
    return out.getvalue()


def array_file(value: Any, zipped: bool = False) -> bytes:
    """An array of one object, as numpy pickles it."""
    out = io.BytesIO()
    array = np.array([value], object)
    np.savez(out, a=array) if zipped else np.save(out, array, allow_pickle=True)
    return out.getvalue()


def plant(folder: Path, reports: Reports, *, inside: bool = True, into: bool = True) -> None:
    """Puts code beside all files of a folder, none of which is replaced. inside: and those of the folders in it. into:
    JSON files name it."""
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir() and inside)]:
        where = place.relative_to(folder.parent).as_posix().replace("/", "_")
        files = {name: reports.code(f"{where}_{name}").encode() for name in (*CODE, f"{place.name}.py")}
        files |= {name: reports.pickled(f"{where}_{name}") for name in PICKLES}
        files["pytorch_model.pt"] = torch_file(reports.pickled(f"{where}_zip"))
        files["objects.npy"] = array_file(reports.object(f"{where}_npy"))
        files["objects.npz"] = array_file(reports.object(f"{where}_npz"), zipped=True)
        compiled = compile(reports.code(f"{where}_pyc"), MODULE, "exec")
        files["evil.pyc"] = b"\0" * 16 + marshal.dumps(compiled)
        for name, content in files.items():
            if not (place / name).exists():
                (place / name).write_bytes(content)
        for path in place.glob("*.json") if into else ():
            content = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(content, dict) and path.name != "tokenizer.json":  # which has a fixed form
                path.write_text(json.dumps(content | KEYS), encoding="utf-8")

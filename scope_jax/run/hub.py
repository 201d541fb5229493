"""Models of the Hugging Face hub: a card may name one, as `Qwen/Qwen3-8B`, where it could name a folder.

The files lie in the hub's own cache (HF_HOME), with the hub's own settings: HF_TOKEN for models that ask for
permission, HF_ENDPOINT for another address, HF_HUB_OFFLINE=1 to use the cache without asking the hub.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from httpx2 import TransportError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from scope_jax.models import sentence_files

LOCAL = ("checkpoints", "models", "runs", "data", "assets")  # folders of cards, never taken for owners on the hub
NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]+")
SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")  # config, tokenizer, template, index of the weights
SHAPE = ("config.json",)
WHOLE = (*SMALL, "*.safetensors")
MODULES = ("Pooling", "Dense", "Normalize")  # of an embedding model, each with a folder, as 1_Pooling
MODULE = ("config.json", "model.safetensors")  # what is in it


class Unavailable(FileNotFoundError):
    """The hub may have the model, but does not give it now, or not to this user."""


def is_name(path: str) -> bool:
    """True for `owner/name` where no folder `owner` exists, and `owner` is no usual name of one (LOCAL)."""
    owner = Path(path).parent
    return bool(NAME.fullmatch(path)) and not owner.exists() and str(owner) not in LOCAL


def snapshot(name: str, files: Sequence[str] = WHOLE) -> Path:
    """The folder with a model's files in the hub's cache, downloaded if they are not there. files: WHOLE, SMALL, SHAPE.

    WHOLE includes the modules after the transformer that an embedding model's modules.json lists; of other folders
    inside the model's nothing is downloaded.

    Raises FileNotFoundError for a model that does not exist, Unavailable for one that this user may not read, or that
    is neither in the cache nor to be had without network.
    """
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(files), ignore_patterns=["*/*"]))
        listed = sentence_files.listed(folder) or [] if files == WHOLE else []
        places = [glob.escape(place) for kind, place in listed if kind in MODULES and place]
        if places:
            inside = [f"{place}/{file}" for place in places for file in MODULE]
            snapshot_download(name, revision=folder.name, allow_patterns=inside)
        return folder
    except GatedRepoError:
        wrong = f"asks for permission: accept its terms on {name}'s page of the hub, and set HF_TOKEN"
    except RepositoryNotFoundError:
        raise FileNotFoundError(
            f"the model {name} is neither a folder here nor a model of the hub; correct the name, or set HF_TOKEN if "
            "it is private."
        ) from None
    except (LocalEntryNotFoundError, TransportError):
        wrong = "is neither a folder here nor in the hub's cache, and the hub cannot be reached; give a folder"
    except HfHubHTTPError as error:
        wrong = f"cannot be downloaded: the hub answers {error.response.status_code}; try again later, or give a folder"
    raise Unavailable(f"the model {name} {wrong}.")

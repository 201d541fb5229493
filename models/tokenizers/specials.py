"""What a tokenizer folder's JSON files say beside its vocabulary: added tokens, special tokens by role, chat template.

The ids come from the vocabulary alone. A token that these files name under another id, or without one, is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from scope_jax.errors import UserError
from scope_jax.models.fields import MOST, cut, read_object, shown
from scope_jax.models.tokenizers import tokenizer_file
from scope_jax.models.tokenizers.tokenizer_file import check_name, shown_name

if TYPE_CHECKING:  # transformers imports for a second, and only what opens a tokenizer needs it
    from transformers import PreTrainedTokenizerFast

CONFIG = "tokenizer_config.json"
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NEEDED = ("bos_token", "eos_token")  # roles that texts are built from; any other may lack a token
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
KEPT = ("model_max_length", "clean_up_tokenization_spaces")  # what other readers of an export go by
MOST_TEMPLATE, MOST_TEMPLATES = 2**20, 64  # characters of a chat template, and their number
GENERIC = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "PythonBackend", "TokenizersBackend")


@dataclass(frozen=True)
class _Said:
    """A token that a file of the folder names: its id there (None: the file gives none), and its flags."""

    file: str
    content: str
    id: int | None
    flags: Mapping[str, bool]


def wrap(fast: FastTokenizer, folder: Path, roles: Mapping[str, str], *, whole: bool) -> PreTrainedTokenizerFast:
    """`fast` with the added tokens, roles and chat template that the folder's JSON files name.

    roles: token by role, where the files say nothing. whole: `fast` is all of a tokenizer.json, so that its tokens keep
    their flags, and no file may add one that ordinary text could become. Raises ValueError with one sentence where the
    files contradict the vocabulary.
    """
    from transformers import PreTrainedTokenizerFast

    config = _object(folder / CONFIG)
    said = sorted(_said(folder, config), key=lambda token: (token.id is None, token.id or 0))
    ids = {token.content for token in said if token.id is not None} | set(fast.get_vocab())
    named = _roles(folder, config, ids, roles)
    special = {token.content for token in said if token.flags.get("special")} | set(named.values())
    _add(fast, said, special, folder, whole)
    listed = {token.content: token for token in fast.get_added_tokens_decoder().values()}
    unmarked = sorted(content for content in special if content not in listed or not listed[content].special)
    flags = {content: _flags(listed[content]) if content in listed else {"normalized": False} for content in unmarked}
    fast.add_special_tokens([AddedToken(content, special=True, **flags[content]) for content in unmarked])
    tokenizer_file.check_names(folder, special | {content for content in listed if listed[content].special})
    kept = {"clean_up_tokenization_spaces": False} | {name: config[name] for name in KEPT if name in config}
    hf = PreTrainedTokenizerFast(tokenizer_object=fast, **kept, **named)
    hf.chat_template = _chat_template(folder, config)
    return hf


def _flags(token: AddedToken) -> dict[str, bool]:
    """How an added token is matched."""
    return {
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "single_word": token.single_word,
        "normalized": token.normalized,
    }


def class_of(folder: Path) -> str | None:
    """The tokenizer class that a folder's files name, without "Fast": in tokenizer_config.json, or through the model
    type in config.json; None if neither names one. Raises ValueError if they name two.
    """
    named, in_config, of_model = _classes(folder)
    usual = of_model or in_config
    found = {str(name).removesuffix("Fast") for name in (named, usual) if name and name not in GENERIC}
    if len(found) > 1:
        raise UserError(
            f"{folder}: {CONFIG} names {cut(str(named))} and config.json means {usual}, which may divide a text "
            "differently, and there is no tokenizer.json that decides; add it, or correct the class."
        )
    return found.pop() if found else None


def check_classes(folder: Path) -> None:
    """Raises ValueError if a file names a class that is no fast tokenizer of transformers: there are others that load
    further parts of the folder, with its own code."""
    from transformers import PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    for name in _classes(folder):
        if name is None or name in GENERIC:
            continue
        kind = tokenizer_class_from_name(name)
        if not isinstance(kind, type) or not issubclass(kind, PreTrainedTokenizerFast):
            raise UserError(
                f"{folder} names the tokenizer class {name}, which is not a fast tokenizer of transformers, and code "
                "of a folder is never run; add tokenizer.json, or correct the class."
            )


# ------------------------------------------------------------------------------------------------------------ reading
def _classes(folder: Path) -> tuple[str | None, str | None, str | None]:
    """The tokenizer classes that tokenizer_config.json and config.json name, and the usual one of the model type."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES  # it imports much: seconds

    config = _object(folder / "config.json")
    in_config = config.get("tokenizer_class")
    named = _class_named(folder, _object(folder / CONFIG))
    return named, in_config and str(in_config), TOKENIZER_MAPPING_NAMES.get(str(config.get("model_type")))


def _class_named(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The tokenizer class in tokenizer_config.json. Raises ValueError for anything but a name."""
    named = config.get("tokenizer_class")
    if named is not None and not isinstance(named, str):
        raise UserError(f"{folder / CONFIG}: tokenizer_class is {cut(repr(named))}, not a name; correct or remove it.")
    return named


def _object(path: Path) -> Mapping[str, Any]:
    return read_object(path) if path.is_file() else {}


def _content(value: Any, said_by: str) -> str:
    """The text of a token, which files give as such or as an object."""
    content = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(content, str) or not content:
        raise UserError(f"{said_by}: {cut(repr(value))} is not a token; correct or remove it.")
    check_name(said_by, content)
    return content


def _said(folder: Path, config: Mapping[str, Any]) -> Iterator[_Said]:
    """Every token that a file names beside the vocabulary and the roles."""
    path = str(folder / CONFIG)
    decoder = config.get("added_tokens_decoder")
    decoder = {} if decoder is None else decoder
    if not isinstance(decoder, Mapping) or not all(id.isdecimal() and len(id) <= 10 for id in decoder):
        raise UserError(f"{path}: added_tokens_decoder is not an object of tokens by id; correct or remove it.")
    for id, token in decoder.items():
        flags = {flag: token[flag] is True for flag in FLAGS if isinstance(token, Mapping) and flag in token}
        yield _Said(path, _content(token, path), int(id), flags)
    ids = {_content(token, path): int(id) for id, token in reversed([*decoder.items()])}
    path = str(folder / "added_tokens.json")
    for content, id in _object(folder / "added_tokens.json").items():
        if type(id) is not int or not 0 <= id <= MOST:
            raise UserError(f"{path}: the id of {shown_name(content)} is {cut(repr(id))}; it must be a whole number.")
        check_name(path, content)
        if content not in ids:
            yield _Said(path, content, id, {})
        elif ids[content] != id:
            raise UserError(
                f"{path} gives {shown_name(content)} the id {id}, but {CONFIG} another; correct one of them."
            )
    maps = {CONFIG: config} | (
        {} if decoder else {"special_tokens_map.json": _object(folder / "special_tokens_map.json")}
    )
    for file, contents_of in maps.items():
        for key in ("additional_special_tokens", "extra_special_tokens"):
            extra = contents_of.get(key)
            extra = [] if extra is None else extra
            if not isinstance(extra, Mapping | list):
                raise UserError(
                    f"{folder / file}: {key} is {cut(repr(extra))}, not a list of tokens; correct or remove it."
                )
            for token in extra.values() if isinstance(extra, Mapping) else extra:
                yield _Said(str(folder / file), _content(token, str(folder / file)), None, {"special": True})


def _roles(folder: Path, config: Mapping[str, Any], ids: Collection[str], usual: Mapping[str, str]) -> dict[str, str]:
    """The token of each role that has one in the vocabulary, and of roles of a model's own ("image_token").

    Raises ValueError if a file names a token for a role in NEEDED that has no id.
    """
    said = {role: (CONFIG, value) for role, value in config.items()}
    if "added_tokens_decoder" not in config:  # as transformers reads them
        file = "special_tokens_map.json"
        said |= {role: (file, value) for role, value in _object(folder / file).items()}
    named = {role: name for role, name in usual.items() if role not in said and name in ids}
    for role, (file, value) in said.items():
        if value is None or isinstance(value, bool) or not role.endswith("_token"):
            continue
        content = _content(value, f"{folder / file}: {role}")
        if content in ids:
            named[role] = content
        elif role in NEEDED:
            raise UserError(
                f"{folder / file} names {shown_name(content)} as {role}, but no file gives it an id; correct it."
            )
    return named


def class_roles(folder: Path) -> dict[str, str]:
    """The tokens by role of the tokenizer class that a folder names, for roles that its files leave out."""
    config = _object(folder / CONFIG)
    named = {*config, *_object(folder / "special_tokens_map.json")}
    kind_named = _class_named(folder, config)
    if kind_named in GENERIC or named.issuperset(NEEDED + ("unk_token", "pad_token")):
        return {}
    if "tokenizer_class" not in config and not (folder / "config.json").is_file():
        return {}
    from transformers.models.auto import tokenization_auto  # it imports much: seconds

    model = str(_object(folder / "config.json").get("model_type"))
    name = kind_named or tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model)
    kind = tokenization_auto.tokenizer_class_from_name(str(name).removesuffix("Fast"))
    known = {} if kind is None else inspect.signature(kind.__init__).parameters
    defaults = {role: known[role].default for role in ROLES if role in known}
    return {role: str(value) for role, value in defaults.items() if isinstance(value, (str, AddedToken))}


def _add(fast: FastTokenizer, said: Sequence[_Said], special: set[str], folder: Path, whole: bool) -> None:
    """Adds the tokens that files name, unless the vocabulary lists them; all at once, as every call takes as long."""
    listed = {added.content for added in fast.get_added_tokens_decoder().values()}
    new = []
    for token in said:
        if whole and token.content not in listed and token.content not in special:
            raise UserError(
                f"{token.file} adds {shown_name(token.content)}, which {folder / 'tokenizer.json'} does not list as an "
                "added token, so that texts would get other ids; save the tokenizer again."
            )
        if token.id is not None and not (whole and token.content in listed):
            marked = token.content in special
            flags = token.flags or {"special": marked, "normalized": not marked}  # as transformers adds added_tokens'
            new.append(AddedToken(token.content, **flags))
    fast.add_tokens(new)
    known = fast.get_vocab()
    for token in said:
        have = known.get(token.content)
        if token.id is None and have is None:
            raise UserError(
                f"{token.file} names {shown_name(token.content)} as a special token, but no file gives it an id; "
                "remove it, or save the tokenizer again."
            )
        if token.id is not None and have != token.id:
            raise UserError(
                f"{token.file} gives {shown_name(token.content)} the id {token.id}, which the vocabulary cannot assign "
                f"(there it is {have}); copy the folder again, or save the tokenizer again."
            )


def template_file(path: Path) -> str:
    """A chat template as stored. Raises ValueError with one sentence if it is too long or not UTF-8."""
    if (size := path.stat().st_size) > 4 * MOST_TEMPLATE:
        raise UserError(f"The chat template {path} has {size} bytes, more than any template; use another one.")
    try:
        return _template(path.read_text(encoding="utf-8-sig"), path)  # an editor's mark is no part of it
    except UnicodeDecodeError as error:
        raise UserError(f"The chat template {path} is not UTF-8 ({error.reason}); save it as UTF-8.") from None


def _template(text: Any, path: Path) -> str:
    """A chat template of a file. Raises ValueError unless it is a text, of a length that templates have."""
    if not isinstance(text, str) or len(text) > MOST_TEMPLATE:
        what = f"has {len(text)} characters" if isinstance(text, str) else f"is {shown(text)}, not a text"
        raise UserError(f"The chat template in {path} {what}; correct it, or set model.chat_template.")
    return text


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The folder's chat template, or several by name; None if there is none. Files count before the config."""
    paths = {"default": folder / "chat_template.jinja"}
    several = sorted(folder.glob("additional_chat_templates/*.jinja"))
    if len(several) > MOST_TEMPLATES:
        raise UserError(f"{folder} has {len(several)} chat templates; up to {MOST_TEMPLATES} are supported.")
    paths |= {path.stem: path for path in several}
    if files := {name: template_file(path) for name, path in paths.items() if path.is_file()}:
        return files["default"] if set(files) == {"default"} else files
    stated, path = config.get("chat_template"), folder / CONFIG
    if stated is None:
        return None
    if not isinstance(stated, list):
        return _template(stated, path)
    known = all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in stated)
    if not known or len(stated) > MOST_TEMPLATES:
        raise UserError(
            f"{path}: chat_template is a list of something else than up to {MOST_TEMPLATES} names and templates."
        )
    return {template["name"]: _template(template.get("template"), path) for template in stated}

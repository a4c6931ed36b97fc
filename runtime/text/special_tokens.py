"""Finds the special tokens: markers such as <|im_end|> that a model reads and writes and that are not text.

tokenizer.json marks some of them. tokenizer_config.json and special_tokens_map.json may name more, which transformers
takes as special too: the tokens of their entries bos_token, eos_token, mask_token and the like, the tokens of LISTS,
and the added tokens that are marked as special.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

LISTS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
"""The entries that hold several tokens, as a list or as an object {name: token}."""

_PROPERTIES = ("single_word", "lstrip", "rstrip", "normalized")


def named_tokens(*files: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of the named tokens, as {"bos_token": text}. files: the parsed files; the first file that has a
    name decides."""
    tokens: dict[str, str] = {}
    for file in files:
        for name, value in file.items():
            token = _token(value)
            if name.endswith("_token") and token is not None:
                tokens.setdefault(name, token.content)
    return tokens


def special_tokens(*files: Mapping[str, Any]) -> list[AddedToken]:
    """Returns every token that one of the files calls special, each once. files: as for `named_tokens`."""
    found: dict[str, AddedToken] = {}
    for file in files:
        for token in _listed(file):
            found.setdefault(token.content, token)
    return list(found.values())


def mark_special(tokenizer: tokenizers.Tokenizer, tokens: Iterable[AddedToken]) -> None:
    """Marks the tokens as special in the tokenizer. It leaves out a token that the tokenizer does not know: such a
    token has no id, so the model cannot use it."""
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    for token in tokens:
        own = known.get(token.content)
        if own is not None and own.special:
            continue
        if tokenizer.token_to_id(token.content) is not None:
            tokenizer.add_special_tokens([token if own is None else _as_special(own)])


def _listed(file: Mapping[str, Any]) -> Iterator[AddedToken]:
    added = file.get("added_tokens_decoder")
    marked = added.values() if isinstance(added, dict) else []
    values = [value for value in marked if isinstance(value, dict) and value.get("special") is True]
    values += [value for name, value in file.items() if name.endswith("_token")]
    for name in LISTS:
        several = file.get(name)
        values += several.values() if isinstance(several, dict) else several if isinstance(several, list) else []
    for value in values:
        token = _token(value)
        if token is not None:
            yield token


def _token(value: Any) -> AddedToken | None:
    """Returns the token, or None. value: a token as the files hold it: a text, or an object with its content and the
    settings of its matching."""
    if isinstance(value, str) and value:
        return AddedToken(value, special=True, normalized=False)
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, str) or not content:
        return None
    how = {name: value[name] for name in _PROPERTIES if isinstance(value.get(name), bool)}
    return AddedToken(content, special=True, **{"normalized": False, **how})


def _as_special(token: AddedToken) -> AddedToken:
    """Returns the same token as a special one. The settings of its matching stay."""
    return AddedToken(token.content, special=True, **{name: getattr(token, name) for name in _PROPERTIES})

"""The hand-written texts behind the data set, read from the package's TOML files."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A family of requests: any `do` with any `what`."""

    severity: int
    do: tuple[str, ...]
    what: tuple[str, ...]
    word: str = ""
    """The alarming word that a benign topic shares with harmful ones; only benign topics have
    it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A safety category and its topics, by split."""

    because: str
    """The reason that completes "The request ..."."""
    offers: tuple[str, ...]
    """Continuations of the suggested response after its first sentence."""
    decline: str = ""
    """The first sentence of the suggested response; only unsafe categories have it."""
    train: dict[str, Topic]
    validation: dict[str, Topic]
    test: dict[str, Topic]

    def topics(self, split: Split) -> dict[str, Topic]:
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disguises:
    """How a request can be disguised; each field maps a split to what it may use."""

    asks: dict[Split, tuple[str, ...]]
    """Plain questions around `{request}`."""
    code_words: dict[Split, tuple[str, ...]]
    train: dict[str, tuple[str, ...]]
    """Wrapper family to its phrasings."""
    validation: dict[str, tuple[str, ...]]
    test: dict[str, tuple[str, ...]]

    def wrappers(self, split: Split) -> dict[str, tuple[str, ...]]:
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


@cache
def unsafe_categories() -> dict[str, Category]:
    return msgspec.convert(_read_toml("unsafe"), dict[str, Category])


@cache
def benign_categories() -> dict[str, Category]:
    return msgspec.convert(_read_toml("benign"), dict[str, Category])


@cache
def read_disguises() -> Disguises:
    return msgspec.convert(_read_toml("wrappers"), Disguises)


@cache
def safe_questions() -> dict[Split, dict[str, tuple[str, str]]]:
    """Split to topic to (question, answer)."""
    return msgspec.convert(_read_toml("safe"), dict[Split, dict[str, tuple[str, str]]])


def _read_toml(name: str) -> dict[str, object]:
    text = (files("waltzrl.evaluation.data.generator") / f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)

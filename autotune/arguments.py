"""The parser of the command line: a wrong argument is one line that says what is allowed and where to read on."""

from __future__ import annotations

import argparse
from typing import NoReturn

from autotune.errors import InputError
from autotune.fields import near


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are InputErrors of one line, in place of the usage and an exit."""

    def parse_known_args(self, args=None, namespace=None):
        """Refuses what is unknown here, where the verb is known, and not in the parser of all verbs."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = near(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unknown argument {_cut(unknown[0])}{hint}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def whole(text: str) -> int:
    """Returns a whole number of the command line."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_cut(text)} is not a whole number, such as 128") from None


def number(text: str) -> float:
    """Returns a number of the command line."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_cut(text)} is not a number, such as 2.5") from None


def _cut(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")

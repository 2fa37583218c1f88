"""Results of checks of ``devmem doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The result of a check: ``info`` states a fact, ``warn`` is worth a look, ``fail`` has to be fixed."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """The result of one check, with advice."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

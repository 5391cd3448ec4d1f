"""The variables that a real ROCm image carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).with_name("image_env.json")


class ImageEnv(NamedTuple):
    """ENV lines of one image: where they were read, which image it is, and the variables."""

    source: str
    image: str
    env: dict[str, str]


def load() -> ImageEnv:
    """The ENV lines of SGLang's ROCm image, as surroundings/image_env.json has them."""
    document = json.loads(PATH.read_text(encoding="utf-8"))
    return ImageEnv(document["source"], document["image"], document["env"])

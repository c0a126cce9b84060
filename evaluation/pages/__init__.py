"""Templates of the pages we write: each becomes one self-contained file, with no outside assets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_FOLDER = Path(__file__).parent
_ENVIRONMENT = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)


def render(page: str, data: Any, **values: Any) -> str:
    """The page ``{page}.html`` with its style, its script ``{page}.js`` and ``data`` inside."""
    return _ENVIRONMENT.get_template(f"{page}.html").render(
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup((_FOLDER / f"{page}.js").read_text(encoding="utf-8")),
        data=_embedded(data),
        **values,
    )


def _embedded(data: Any) -> Markup:
    """JSON that no text inside it can end: generated text may well hold a closing script tag."""
    return Markup(json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"))

"""The pictures that a report embeds, as data URIs of bounded size."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnaudit.errors import DataError
from attnaudit.input_files import read_picture
from attnaudit.instances import Instance

#: Suffixes of files that are not pictures, although their units may have a place in one.
_WITHOUT_PICTURE = (".npy", ".safetensors", ".pt", ".wav")
#: Longest side of an embedded picture in pixels.
LONGEST_SIDE = 256
#: Largest size of all embedded pictures of a report, in bytes.
MOST_BYTES = 3_000_000
#: Pictures with at most this many pixels are embedded without loss.
SMALL = 64 * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPicture:
    """A picture in a report.

    Attributes:
        key: The id of the picture in the page; "" if it is not embedded.
        uri: The picture as a data URI; "" if it is not embedded.
        aspect: Height divided by width.
        note: Why the picture is not embedded; "" if it is.
    """

    key: str = ""
    uri: str = ""
    aspect: float = 1.0
    note: str = ""

    @property
    def lossless(self) -> bool:
        """Whether the picture is so small that it is embedded without loss, and drawn with sharp pixels."""
        return self.uri.startswith("data:image/png")


@dataclass(slots=True)
class PictureStore:
    """The pictures of one report. Each picture is embedded once, even if several checks show it."""

    pictures: dict[str, EmbeddedPicture] = field(default_factory=dict)
    size: int = 0

    @property
    def embedded(self) -> list[EmbeddedPicture]:
        """The pictures that the page contains."""
        return [picture for picture in self.pictures.values() if picture.key]

    def of(self, file: str, sha256: str) -> EmbeddedPicture:
        """Return the picture in a file. Its `note` says why it is not embedded, for example because it has changed.

        Args:
            file: The path of the file; "" if it is unknown.
            sha256: The SHA-256 hash that the file had in the audit; "" if it is unknown.
        """
        if file not in self.pictures:
            self.pictures[file] = self._read(file, sha256)
        return self.pictures[file]

    def _read(self, file: str, sha256: str) -> EmbeddedPicture:
        if not file:
            return EmbeddedPicture(note="The run names no picture, so the units are drawn without one.")
        name = Path(file).name
        if Path(file).suffix.lower() in _WITHOUT_PICTURE:
            return EmbeddedPicture(note=f"{name} is not a picture, so the units are drawn without one.")
        try:
            picture = read_picture(Instance(id=name, text=name, file=file, file_sha256=sha256))
        except DataError:
            return EmbeddedPicture(
                note=f"{name} was changed or moved after the audit, so the units are drawn without it."
            )
        aspect = picture.height / picture.width
        if self.size >= MOST_BYTES:
            note = "The report already contains many pictures, so the units are drawn without this one."
            return EmbeddedPicture(aspect=aspect, note=note)
        uri = data_uri(picture)
        self.size += len(uri)
        return EmbeddedPicture(key=f"picture-{len(self.pictures)}", uri=uri, aspect=aspect)


def data_uri(picture: Any) -> str:
    """Return a picture as a data URI. A large picture is made smaller, and compressed as JPEG."""
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    lossless = picture.width * picture.height <= SMALL
    content = io.BytesIO()
    if lossless:
        picture.save(content, "PNG", optimize=True)
    else:
        picture.save(content, "JPEG", quality=80)
    encoded = base64.b64encode(content.getvalue()).decode("ascii")
    return f"data:image/{'png' if lossless else 'jpeg'};base64,{encoded}"

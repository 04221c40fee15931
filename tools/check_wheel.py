"""Check that a wheel holds the package and nothing else: python tools/check_wheel.py WHEEL"""

from __future__ import annotations

import sys
import zipfile
from pathlib import PurePosixPath

#: The largest size of the wheel, in bytes. Most of it is the demo model and the movie reviews.
LARGEST = 5_500_000
SUFFIXES = {".py", ".typed", ".j2", ".css", ".js", ".toml", ".template", ".txt", ".gz", ".json", ".safetensors"}


def main(path: str) -> int:
    with zipfile.ZipFile(path) as wheel:
        entries = wheel.infolist()
    size = sum(entry.compress_size for entry in entries)
    files = [PurePosixPath(entry.filename) for entry in entries]
    metadata = [file for file in files if file.parts[0].endswith(".dist-info")]
    packaged = [file for file in files if file not in metadata]
    unexpected = [str(file) for file in packaged if file.parts[0] != "attnaudit" or file.suffix not in SUFFIXES]
    print(f"  {len(packaged)} files of the package, {size / 1e6:.1f} MB compressed")
    if unexpected:
        print(f"{path}: the wheel holds files that the package does not need: {', '.join(unexpected)}.")
        return 1
    if size > LARGEST:
        largest = sorted(entries, key=lambda entry: -entry.compress_size)[:3]
        named = ", ".join(f"{entry.filename} ({entry.compress_size:,} bytes)" for entry in largest)
        print(f"{path}: {size:,} bytes, expected at most {LARGEST:,}. The largest files: {named}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

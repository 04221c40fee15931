"""Arrays in .npy, .safetensors and .pt files, and the errors for invalid ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnaudit.errors import DataError
from attnaudit.input_files import file_contents, read_array
from attnaudit.input_files.array_files import parse_array
from attnaudit.input_files.named_file import find_file
from attnaudit.instances import Instance

FEATURES = torch.arange(12, dtype=torch.float32).reshape(3, 4)
BOXES = torch.tensor([[0, 0, 0.5, 0.5], [0.5, 0, 0.5, 1], [0.25, 0.25, 0.1, 0]])
TIMES = torch.tensor([[0, 1.5], [1.5, 2], [2, 2]])
PLACES = {"features": FEATURES, "boxes": BOXES, "times": TIMES}


def instance(path: Path) -> Instance:
    found = find_file(path.name, path.parent, "rows.csv:2")
    return Instance(id="a", text=path.name, file=found.path, file_sha256=found.sha256, where="rows.csv:2")


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        find_file(path.name, path.parent, "rows.csv:2: column 'file'")
    for part in ("rows.csv:2: column 'file'", path.name, *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "uint8", "int64", "bool"])
def test_numbers_of_every_type_become_float32(tmp_path: Path, dtype: str) -> None:
    array = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    np.save(tmp_path / "bag.npy", np.asfortranarray(array))
    features = read_array(instance(tmp_path / "bag.npy")).features
    assert features.dtype == torch.float32
    assert features.tolist() == [[0, 1], [1, 1], [1, 0]]


def save_pt(tensors: dict[str, torch.Tensor], path: Path) -> None:
    torch.save(tensors | {"names": ["a", "b", "c"]}, path)


def save_safetensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path, metadata={"names": json.dumps(["a", "b", "c"])})


@pytest.mark.parametrize(("suffix", "save"), [(".pt", save_pt), (".safetensors", save_safetensors)])
def test_names_boxes_and_times(tmp_path: Path, suffix: str, save: Callable[[Any, Path], None]) -> None:
    path = tmp_path / f"bag{suffix}"
    save(PLACES | {"features": FEATURES.bfloat16()}, path)
    array = read_array(instance(path))
    assert torch.equal(array.features, FEATURES)
    assert array.names == ("a", "b", "c")
    assert array.boxes is not None
    assert array.times is not None
    assert torch.equal(array.boxes, BOXES)
    assert torch.equal(array.times, TIMES)


def test_a_single_tensor_needs_no_name(tmp_path: Path) -> None:
    torch.save(FEATURES.requires_grad_(False), tmp_path / "bag.pt")
    save_file({"anything": FEATURES}, tmp_path / "bag.safetensors")
    for name in ("bag.pt", "bag.safetensors"):
        array = read_array(instance(tmp_path / name))
        assert torch.equal(array.features, FEATURES)
        assert (array.names, array.boxes, array.times) == (None, None, None)


class Harmful:
    """An object whose unpickling would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_no_object_is_unpickled(tmp_path: Path) -> None:
    harmful = Harmful(tmp_path / "harmed")
    np.save(tmp_path / "bag.npy", np.array([[harmful]], dtype=object), allow_pickle=True)
    torch.save({"features": FEATURES, "more": harmful}, tmp_path / "bag.pt")
    refused(tmp_path / "bag.npy", "Python objects", "could run code")
    refused(tmp_path / "bag.pt", "could run code", "torch.save(tensor, path)")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("array", "parts"),
    [
        (np.array([[1.0, np.nan]]), ("at index [0, 1] is NaN",)),
        (np.array([[1.0], [-np.inf]]), ("at index [1, 0] is infinite",)),
        (np.array([[1e300]]), ("too large for float32",)),
        (np.zeros((0, 4)), ("(0, 4)", "nothing to attend to")),
        (np.zeros((4, 0)), ("(4, 0)", "nothing to attend to")),
        (np.zeros(()), ("a single number", "expected shape (n, d)")),
        (np.array([["a"]]), ("<U1", "expected numbers")),
        (np.array([[1j]]), ("complex128", "expected numbers")),
        (np.zeros((2, 2), dtype=[("a", "f4")]), ("expected numbers",)),
    ],
)
def test_invalid_arrays(tmp_path: Path, array: np.ndarray[Any, Any], parts: tuple[str, ...]) -> None:
    np.save(tmp_path / "bag.npy", array)
    refused(tmp_path / "bag.npy", *parts)


@pytest.mark.parametrize(
    ("entries", "parts"),
    [
        ({"a": FEATURES, "b": FEATURES}, ("'a', 'b'", "expected a tensor 'features'")),
        ({"boxes": BOXES}, ("'boxes'", "expected a tensor 'features'")),
        (PLACES | {"boxes": BOXES[:2]}, ("'boxes' has the shape (2, 4), expected (3, 4)",)),
        (PLACES | {"boxes": BOXES * 300}, ("'boxes' of unit 0", "fractions of the width")),
        (PLACES | {"times": TIMES.flip(1)}, ("'times' of unit 0", "an end that is not before the start")),
        (PLACES | {"times": TIMES * torch.nan}, ("'times' at index [0, 0] is NaN",)),
        (PLACES | {"names": ["a"]}, ("1 names for 3 units",)),
        (PLACES | {"names": [1, 2, 3]}, ("'names'", "expected a list of texts")),
        ({"features": [[1.0]]}, ("'features' is of the type list",)),
        ({"features": FEATURES.to_sparse()}, ("sparse", "expected a dense tensor")),
        ({"features": FEATURES.to(torch.complex64)}, ("complex64", "expected a dense tensor")),
        ({"features": torch.empty(3, 4, device="meta")}, ("'features' is a meta tensor", "expected a dense tensor")),
        ({"features": torch.zeros(()).expand(2**20, 2**20)}, ("1,099,511,627,776 numbers", "expected at most")),
        ({"features": FEATURES, "sampling_rate": 0.5}, ("'sampling_rate' is 0.5", "expected a positive whole number")),
        ({"features": FEATURES, "sampling_rate": math.inf}, ("'sampling_rate' is inf", "expected a positive whole")),
        ({"features": FEATURES, "sampling_rate": torch.tensor(math.inf)}, ("'sampling_rate' is tensor(inf)",)),
        ({"features": FEATURES, "sampling_rate": torch.empty(1, device="meta")}, ("'sampling_rate' is tensor(",)),
        (3.5, ("float",)),
    ],
)
def test_invalid_entries(tmp_path: Path, entries: object, parts: tuple[str, ...]) -> None:
    torch.save(entries, tmp_path / "bag.pt")
    refused(tmp_path / "bag.pt", *parts)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(tmp_path: Path) -> None:
    torch.save(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), tmp_path / "bag.pt")
    refused(tmp_path / "bag.pt", "'features' is a nested tensor", "expected a dense tensor")


def test_a_waveform_is_not_a_bag(tmp_path: Path) -> None:
    np.save(tmp_path / "bag.npy", np.zeros(4))
    with pytest.raises(DataError, match=r"rows.csv:2: column 'file': .*the shape \(4,\), expected \(n, d\)"):
        read_array(instance(tmp_path / "bag.npy"))


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".pt"])
@pytest.mark.parametrize("content", [b"x", b"\x93NUMPY\x01\x00", b"\xff" * 64, b"{}" * 40])
def test_other_contents(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"bag{suffix}"
    path.write_bytes(content)
    refused(path, suffix)
    path.write_bytes(b"")
    refused(path, "is empty")


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated_files(tmp_path: Path, kept: float) -> None:
    np.save(tmp_path / "bag.npy", np.zeros((100, 4)))
    save_file({"features": FEATURES}, tmp_path / "bag.safetensors")
    torch.save(FEATURES, tmp_path / "bag.pt")
    np.savez(tmp_path / "archive.npz", FEATURES.numpy())
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    for name in ("bag.npy", "bag.safetensors", "bag.pt"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: int(kept * len(content))])
        refused(tmp_path / name)
    refused(tmp_path / "archive.npy", "an .npz archive")


@pytest.mark.parametrize("shape", ["(5,, ", "(1000000000000,)", "(5,) + (5,)", "5,)"])
def test_damaged_headers(tmp_path: Path, shape: str) -> None:
    np.save(tmp_path / "bag.npy", np.zeros((100, 4)))
    content = (tmp_path / "bag.npy").read_bytes()
    damaged = content[:128].replace(b"(100, 4)", shape.encode())
    (tmp_path / "bag.npy").write_bytes(damaged[:127].ljust(127)[:127] + b"\n" + content[128:])
    refused(tmp_path / "bag.npy", "not a readable .npy file", "Write it with numpy.save")


@pytest.mark.filterwarnings("ignore")  # numpy and torch warn about some of these files
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".pt"])
def test_damaged_files_are_read_or_refused(tmp_path: Path, suffix: str) -> None:
    np.save(tmp_path / "bag.npy", FEATURES.numpy())
    save_safetensors({"features": FEATURES}, tmp_path / "bag.safetensors")
    torch.save(PLACES | {"names": ["a", "b", "c"]}, tmp_path / "bag.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / f"bag{suffix}").read_bytes()
    random = np.random.default_rng(0)
    messages = []
    for _ in range(300):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 2):
            damaged[place] = random.choice(list(b"(){}[],'019 -e\x00\xff"))
        try:
            parse_array(bytes(damaged), tmp_path / f"bag{suffix}", "rows.csv:2")
        except DataError as error:
            messages.append(str(error))
    assert messages
    assert all(message.startswith(f"rows.csv:2: {tmp_path}") for message in messages)


def test_names_that_are_not_json(tmp_path: Path) -> None:
    save_file({"features": FEATURES}, tmp_path / "bag.safetensors", metadata={"names": "a, b, c"})
    refused(tmp_path / "bag.safetensors", "not a readable .safetensors file")


def test_a_file_that_changes_during_the_run(tmp_path: Path) -> None:
    np.save(tmp_path / "bag.npy", np.zeros((2, 2)))
    one = instance(tmp_path / "bag.npy")
    np.save(tmp_path / "bag.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match=r"rows.csv:2: column 'file': .*bag.npy changed after the data were loaded"):
        read_array(one)
    (tmp_path / "bag.npy").unlink()
    with pytest.raises(DataError, match=r"rows.csv:2: column 'file': .*bag.npy cannot be read: No such file"):
        read_array(one)


def test_a_row_without_a_file() -> None:
    with pytest.raises(DataError, match=r"rows.csv:3: the row names no file, but the model reads files"):
        read_array(Instance(id="a", text="words", where="rows.csv:3"))


def test_huge_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "bag.npy", np.zeros((2, 2)))
    monkeypatch.setattr(file_contents, "LARGEST_FILE", 100)
    refused(tmp_path / "bag.npy", "160 bytes, expected at most 100")

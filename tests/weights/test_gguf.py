"""Every tensor type and metadata kind is read as the reference reads it; nothing damaged gets past the reader."""

import random
import struct
from pathlib import Path

import gguf_writer
import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from omni_runtime.errors import CheckpointError  # noqa: E402
from omni_runtime.weights.gguf import GGUF  # noqa: E402

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34), "BF16": (30, 1, 2)}


def save(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return path


def finite_blocks(kind: str, count: int, seed: int) -> bytes:
    """Random blocks, whose scales are halves of ordinary size: random bits would often be NaN."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=count).astype("<f4")
    if kind == "F32":
        return values.tobytes()
    if kind == "F16":
        return values.astype("<f2").tobytes()
    if kind == "BF16":
        return (values.view("<u4") >> 16).astype("<u2").tobytes()
    codes = rng.integers(0, 256, (count, TYPES[kind][2]), dtype=np.uint8)
    halves = 4 if kind == "Q4_1" else 2
    codes[:, :halves] = rng.normal(size=(count, halves // 2)).astype("<f2").view(np.uint8)
    return codes.tobytes()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("rows", [1, 7, 5000])  # 5000 blocks are more than the reader decodes at once
def test_every_type_equals_the_reference(tmp_path: Path, kind: str, rows: int) -> None:
    quants = pytest.importorskip("gguf.quants")
    number, elements, size = TYPES[kind]
    raw = finite_blocks(kind, rows, seed=rows)
    file = GGUF(save(tmp_path, gguf_writer.build({}, [("pad", (3,), 0, b"\0" * 12), ("w", (rows, elements), number, raw)])))
    expected = quants.dequantize(np.frombuffer(raw, np.uint8).reshape(rows, size), quants.GGMLQuantizationType(number))
    found = file.tensor("w").numpy()
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.reshape(rows, elements))


def test_a_block_of_each_quantised_type_by_hand(tmp_path: Path) -> None:
    nibbles = bytes((i | (15 - i) << 4) for i in range(16))
    half, quarter = np.float16(0.5).tobytes(), np.float16(0.25).tobytes()
    tensors = [
        ("q4_0", (32,), 2, half + nibbles),
        ("q4_1", (32,), 3, half + quarter + nibbles),
        ("q8_0", (32,), 8, half + np.arange(-16, 16, dtype=np.int8).tobytes()),
    ]
    file = GGUF(save(tmp_path, gguf_writer.build({}, tensors)))
    codes = np.concatenate([np.arange(16), 15 - np.arange(16)])
    assert np.array_equal(file.tensor("q4_0").numpy(), (codes - 8) * 0.5)
    assert np.array_equal(file.tensor("q4_1").numpy(), codes * 0.5 + 0.25)
    assert np.array_equal(file.tensor("q8_0").numpy(), np.arange(-16, 16) * 0.5)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_kind(tmp_path: Path, version: int) -> None:
    scalars = {"k.u8": ("u8", 255), "k.i8": ("i8", -7), "k.u16": ("u16", 65535), "k.i16": ("i16", -300)}
    scalars |= {"k.u32": ("u32", 2**32 - 1), "k.i32": ("i32", -5)}
    scalars |= {"k.f32": ("f32", 0.5), "k.bool": ("bool", True), "k.u64": ("u64", 2**64 - 1)}
    scalars |= {"k.i64": ("i64", -(2**62)), "k.f64": ("f64", 0.1)}
    others = {"k.text": "naïve ☃", "k.empty": "", "k.list": [1, 2, 3], "k.texts": ["a", ""], "k.nested": [[1], [2, 3]]}
    others["k.none"] = []
    file = GGUF(save(tmp_path, gguf_writer.build(scalars | others, version=version)))
    assert file.metadata == {key: value[1] for key, value in scalars.items()} | others


def test_other_alignment_and_shapes(tmp_path: Path) -> None:
    values = np.arange(24, dtype="<f4")
    tensors = [("a", (2, 3, 4), 0, values.tobytes()), ("b", (), 0, values[:1].tobytes())]
    file = GGUF(save(tmp_path, gguf_writer.build({"general.alignment": 64}, tensors, alignment=64)))
    assert np.array_equal(file.tensor("a").numpy(), values.reshape(2, 3, 4))
    assert file.tensor("b").shape == ()


def test_a_tensor_outlives_its_file(tmp_path: Path) -> None:
    path = save(tmp_path, gguf_writer.build({}, [("w", (4,), 0, np.ones(4, "<f4").tobytes())]))
    tensor = GGUF(path).tensor("w")
    path.unlink()
    tensor += 1  # memory of its own, writable
    assert tensor.tolist() == [2, 2, 2, 2]


PAIR = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_writer.text("k")
ONE = ("w", (4,), 0, b"\0" * 16)
DAMAGED = {
    "empty": (b"", "cannot be read"),
    "magic": (b"GGML" + b"\0" * 60, "magic"),
    "version 1": (gguf_writer.build(version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + b"\0" * 60, "big-endian"),
    "many pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "metadata pairs"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "tensors"),
    "long key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + b"\0" * 60, "goes on to byte"),
    "long array": (PAIR + struct.pack("<IIQ", 9, 4, 2**61), "array items"),
    "bad kind": (PAIR + struct.pack("<II", 13, 0), "'k': its type is 13"),
    "bad text": (gguf_writer.build({"k": b"\xff\xfe"}), "not UTF-8"),
    "key twice": (gguf_writer.build([("k", 1), ("k", 2)]), "'k': the key appears twice"),
    "deep": (gguf_writer.build({"k": [[[[[[1]]]]]]}), "nested"),
    "alignment": (gguf_writer.build({"general.alignment": 48}), "power of two"),
    "split": (gguf_writer.build({"split.count": ("u16", 3)}), "one part of 3"),
    "unknown type": (gguf_writer.build({}, [("blk.w", (256,), 14, b"\0" * 210)]), "'blk.w': its type is ggml type 14"),
    "five axes": (gguf_writer.build({}, [("w", (1, 1, 1, 1, 1), 0, b"\0" * 4)]), "5 axes"),
    "no elements": (gguf_writer.build({}, [("w", (0, 2**62), 0, b"")]), "holds nothing"),
    "half a block": (gguf_writer.build({}, [("w", (2, 48), 8, b"\0" * 102)]), "blocks of 32"),
    "tensor twice": (gguf_writer.build({}, [ONE, ONE]), "'w': the name appears twice"),
    "offset past the end": (gguf_writer.build({}, [ONE], offsets={"w": 32}), "'w': its data would end"),
    "offset far past the end": (gguf_writer.build({}, [ONE], offsets={"w": 2**63}), "'w': its data would end"),
    "crooked offset": (gguf_writer.build({}, [ONE], offsets={"w": 7}), "no multiple of the alignment"),
    "huge shape": (gguf_writer.build({}, [("w", (2**40, 2**40), 0, b"")]), "'w': its data would end"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    raw, clause = DAMAGED[name]
    with pytest.raises(CheckpointError) as caught:
        GGUF(save(tmp_path, raw))
    assert clause in str(caught.value)
    assert "model.gguf" in str(caught.value)


def test_a_missing_file_and_a_missing_tensor_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.gguf"):
        GGUF(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="'v' is missing"):
        GGUF(save(tmp_path, gguf_writer.build({}, [ONE]))).tensor("v")


def small_file() -> bytes:
    return gguf_writer.build({"a": 1, "t": ["x", "yz"], "n": [1.0, 2.0]}, [ONE, ("q", (2, 32), 8, finite_blocks("Q8_0", 2, 0))])


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = small_file()
    GGUF(save(tmp_path, whole))
    for length in range(len(whole)):
        with pytest.raises(CheckpointError):
            GGUF(save(tmp_path, whole[:length]))


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    rng, whole, refused = random.Random(0), small_file(), 0
    for _ in range(1500):
        raw = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            file = GGUF(save(tmp_path, bytes(raw)))
            for name, entry in file.entries.items():
                assert file.tensor(name).shape == entry.shape
        except CheckpointError:
            refused += 1
    assert 300 < refused < 1500  # damage in names, numbers and data is not all detectable


@pytest.mark.oracle
def test_the_real_file_equals_the_reference() -> None:
    quants, reader = pytest.importorskip("gguf.quants"), pytest.importorskip("gguf")
    from omni_runtime.weights import smollm2

    path = smollm2.locate()
    file, reference = GGUF(path), reader.GGUFReader(path)
    assert set(file.entries) == {tensor.name for tensor in reference.tensors}
    for tensor in reference.tensors:
        if tensor.name.startswith(("blk.0.", "blk.29.", "output")):  # all layers alike; the whole takes 13 s
            expected = quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(file.tensor(tensor.name).numpy(), expected), tensor.name
    for key, found in file.metadata.items():
        assert reference.fields[key].contents() == found, key

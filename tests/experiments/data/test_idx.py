"""The idx parser: everything well-formed comes back, nothing malformed does."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from idx_writer import CODES, encode

from torchtagi.experiments.data import DataError
from torchtagi.experiments.data.idx import parse_idx, read_idx

any_array = st.sampled_from(sorted(CODES)).flatmap(
    lambda code: arrays.arrays(np.dtype(code), arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)


@settings(max_examples=100, deadline=None)
@given(any_array)
def test_every_array_survives_the_round_trip(array: np.ndarray) -> None:
    parsed = parse_idx(encode(array), "memory")
    assert parsed.dtype == array.dtype
    assert parsed.dtype.isnative
    np.testing.assert_array_equal(parsed, array)


@settings(max_examples=100, deadline=None)
@given(any_array, st.data())
def test_every_truncation_is_refused_by_name(array: np.ndarray, data: st.DataObject) -> None:
    content = encode(array)
    kept = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(DataError, match=r"^short\.idx "):
        parse_idx(content[:kept], "short.idx")


SAMPLE = encode(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an idx file"),
        (b"\x89PNG" + SAMPLE[4:], "is not an idx file: it starts with .*PNG"),
        (b"\0\0\x0a\x02" + SAMPLE[4:], "unknown type code 0x0a"),
        (b"\0\0\x08\x00", "no dimensions"),
        (SAMPLE[:7], "truncated: 7 bytes, its header alone needs 12"),
        (SAMPLE[:-1], r"truncated: 17 bytes, shape \(2, 3\) needs 18"),
        (SAMPLE + b"\0", "bytes left over: 19 bytes"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated"),
    ],
)
def test_malformed_content_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=f"bad.idx.*{complaint}"):
        parse_idx(content, "bad.idx")


def test_plain_and_gzipped_files_read_the_same_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(SAMPLE)
    (tmp_path / "packed").write_bytes(gzip.compress(SAMPLE))
    for name in ("plain.gz", "packed"):
        assert read_idx(tmp_path / name).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: packed[:12] + b"\xff" * 12])
def test_a_damaged_gzip_is_refused_by_name(tmp_path: Path, damage) -> None:
    file = tmp_path / "damaged.gz"
    file.write_bytes(damage(gzip.compress(SAMPLE)))
    with pytest.raises(DataError, match=r"damaged\.gz cannot be read"):
        read_idx(file)

"""Delimited text: Arrow's reading against the grammar in Python, and both against written rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deepgat.data.tables import delimited
from deepgat.data.tables.delimited import TextTable
from deepgat.data.tables.text import number_of
from deepgat.data.tables.vocabulary import Vocabulary
from deepgat.errors import UserError

ALPHABET = b'01a,;"\n\r \t#%.e-+\0\xff\xc3\xa4nN/'
TABLES = st.lists(st.sampled_from(list(ALPHABET)), max_size=40).map(bytes)
NEAR_TABLES = st.lists(
    st.sampled_from([b"a", b"1", b"0", b"b", b"-1.5", b"7e3", b"nan", b"-nan", b"00", b" a", b" ",
                     b'"a"', b'" a"', b'"a,\nb"', b'"x""y"', b'""', b'a"', b",", b",", b",", b"\n",
                     b"\n", b"\r\n", b"\n\n", b"# a\n", b"\xff"]),
    max_size=16,
).map(b"".join)  # fmt: skip


def read(path, text: bytes, width=2, texts=("c0",), delimiter=",", comments=True):
    """(columns, whether each is text, lines) of a text, or the sentence that refuses it."""
    path.write_bytes(text)
    header = [f"c{i}" for i in range(width)]
    columns: dict[str, list] = {name: [] for name in header}
    kinds, lines = {}, []
    try:
        for rows in TextTable(path, header, delimiter, 0, comments).rows(texts):
            for name, values in rows.columns.items():
                columns[name] += values.to_numpy(zero_copy_only=False).tolist()
                kinds[name] = kinds.get(name, False) or values.type == pa.string()
            lines += [rows.place(row) for row in range(rows.length)]
    except UserError as error:
        return str(error)
    return columns, kinds, lines


def same(a, b) -> None:
    if isinstance(a, str) or isinstance(b, str):
        assert a == b
        return
    assert a[1:] == b[1:]
    for name in a[0]:
        assert list(map(str, a[0][name])) == list(map(str, b[0][name]))  # NaN equals NaN


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=TABLES | NEAR_TABLES,
    width=st.integers(1, 3),
    delimiter=st.sampled_from([",", ";", "\t", " "]),
    comments=st.booleans(),
    block=st.integers(20, 60),
)
@example(b'a,"say ""hi"" x"\n', 2, ",", False, 60)
@example(b'a,"1 "\na, 1\n', 2, ",", False, 60)
@example(b"1,+1\n", 2, ",", False, 60)
@example(b"a\tb\n# x\n  a  b \r\n", 2, " ", True, 60)
def test_arrow_reads_what_the_grammar_says(
    tmp_path, monkeypatch, text, width, delimiter, comments, block
):
    arguments = (tmp_path / "t.csv", text, width, ("c0",), delimiter, comments)
    for _ in range(2):
        found = read(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(TextTable, "_arrow", lambda *_: None)
            same(found, read(*arguments))
        monkeypatch.setattr(delimited, "BLOCK", block)
    monkeypatch.undo()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="0123456789.eE+-infaN/ul", min_size=1, max_size=12))
@example(text="1e400")
@example(text="-1e-400")
@example(text="9" * 400)
def test_numbers_are_the_same_numbers(text, tmp_path):
    columns, kinds, _ = read(tmp_path / "t.csv", f"a,{text}\n".encode())
    expected = number_of(text)
    assert kinds["c1"] == (expected is None)
    if expected is not None:
        np.testing.assert_array_equal(columns["c1"], [expected])


def test_cells_lines_and_quotes(tmp_path):
    text = b'"a,b", 1\r\n\n"say ""hi""\nthere",2\n d ,"3"\n5" pipe,4\n "e", 5\nlast,6'
    columns, kinds, lines = read(tmp_path / "t.csv", text)
    assert columns["c0"] == ["a,b", 'say "hi"\nthere', "d", '5" pipe', "e", "last"]
    assert columns["c1"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert kinds == {"c0": True, "c1": False}
    assert lines == [f"line {i}" for i in (1, 3, 5, 6, 7, 8)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a\nb,c\n", "line 2: there are 2 cells, but 1 columns"),
        (b"a\n\xff\n", r"line 2, column 'c0': '\\xff' is not UTF-8"),
        (b"a\nb\0\n", "line 2, column 'c0': there is a NUL byte"),
        (b'a\n"b\nc', "line 2, column 'c0': a quote is opened and never closed"),
        (b'a\n"b"c\n', "line 2, column 'c0': text follows the closing quote of 'b'"),
    ],
)
def test_the_first_mistake_is_named(text, words, tmp_path):
    said = read(tmp_path / "t.csv", text + b"\n1,2,3\n", 1)
    assert isinstance(said, str)
    assert f"t.csv, {words}" in said


@pytest.mark.parametrize("form", ["{}", "user-{}", "{}000000000"])
def test_many_names_keep_their_numbers(form):
    names, expected = Vocabulary(), {}
    draw = np.random.default_rng(0)
    for _ in range(5):
        texts = [form.format(number) for number in draw.integers(0, 5000, 4000)]
        texts[7] = "007"
        for text in texts:
            expected.setdefault(text, len(expected))
        codes = names.add(pa.array(texts))
        assert codes.tolist() == [expected[text] for text in texts]
    assert names.texts() == list(expected)
    assert names.first_repeated() is None
    assert names.find(pa.array(["nobody", "-1", "7" * 18])).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("texts", [["3", "1", "0", "1", "3"], ["c", "b", "a", "b", "c"]])
def test_the_first_repeated_name(texts):
    assert Vocabulary(texts).first_repeated() == 3


def test_whole_numbers_are_looked_up_as_texts():
    names = Vocabulary(["3", "1", "2"])
    assert names.find(pa.array(["1", "3", "4", "-1", "99999999999"])).tolist() == [1, 0, -1, -1, -1]
    for text in ("01", "+1", "-1", "-0", "00", "0x1", " 1", "1 ", "1.0", "1e0", "0xfffffff"):
        assert names.find(pa.array([text, "3"])).tolist() == [-1, 0]

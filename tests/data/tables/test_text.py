"""Delimited text: Arrow's reading against the grammar in Python, and both against written rows."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deepgat.data.tables import delimited
from deepgat.data.tables.delimited import Header, Kind, Wanted
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
IDS = (Kind.NEW_ID, Kind.KNOWN_ID, Kind.ANY_ID)


def read(path, text: bytes, kinds, delimiter=",", comments=False, known=("a", "1", "0")):
    """What a text holds: (rows, turned columns, columns, texts, lines), or the sentence."""
    path.write_bytes(text)
    shared = Vocabulary(() if Kind.NEW_ID in kinds else known)
    own = [shared if kind in IDS else Vocabulary() for kind in kinds]
    header = Header([f"c{i}" for i in range(len(kinds))], delimiter, 0)
    plan = [Wanted(kind, names) for kind, names in zip(kinds, own, strict=True)]
    reader = delimited._Reader(path, header, plan, comments, first_line=1)
    try:
        table = delimited._joined(reader)
    except UserError as error:
        return str(error)
    columns = [
        None if found is None else (found.codes if found.numbers is None else found.numbers)
        for found in (table.find(f"c{i}") for i in range(len(kinds)))
    ]
    lines = [table.place(row) for row in range(table.rows)]
    return table.rows, reader.turned, columns, [item.texts() for item in own], lines


def by_python(monkeypatch, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(delimited, "_for_arrow", lambda *_: None)
        return read(*arguments, **options)


def same(a, b) -> None:
    if isinstance(a, str) or isinstance(b, str):
        assert a == b
        return
    for left, right in zip(a[2], b[2], strict=True):
        np.testing.assert_array_equal(left, right)  # NaN equals NaN
    assert a[:2] + a[3:] == b[:2] + b[3:]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=TABLES | NEAR_TABLES,
    kinds=st.lists(
        st.sampled_from([kind for kind in Kind if kind not in IDS]), max_size=2
    ),
    ids=st.sampled_from([[Kind.NEW_ID], [Kind.KNOWN_ID] * 2, [Kind.ANY_ID] * 2, [Kind.ANY_ID]]),
    delimiter=st.sampled_from([",", ";", "\t", " "]),
    comments=st.booleans(),
    buffer=st.integers(20, 60),
)  # fmt: skip
@example(b'a,"say ""hi"" x"\n', [Kind.TEXT], [Kind.ANY_ID], ",", False, 60)
@example(b'a,"1 "\na, 1\n', [Kind.AUTO], [Kind.ANY_ID], ",", False, 60)
@example(b"0x1,1\n", [], [Kind.KNOWN_ID] * 2, ",", False, 60)
@example(b"1,+1\n", [Kind.NUMBER], [Kind.KNOWN_ID], ",", False, 60)
@example(b"a\tb\n# x\n  a  b \r\n", [], [Kind.ANY_ID] * 2, " ", True, 60)
def test_arrow_reads_what_the_grammar_says(
    tmp_path, monkeypatch, text, kinds, ids, delimiter, comments, buffer
):
    arguments = (tmp_path / "t.csv", text, [*ids, *kinds], delimiter, comments)
    whole = read(*arguments)
    same(whole, by_python(monkeypatch, *arguments))
    with monkeypatch.context() as patch:
        patch.setattr(delimited, "BUFFER", buffer)
        patch.setattr(delimited, "BYTES_PER_NAME", 0)
        cut = read(*arguments)
        same(cut, by_python(monkeypatch, *arguments))
        if not isinstance(whole, str):
            if isinstance(cut, str):
                assert "longer than" in cut
            else:
                same(whole, cut)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="0123456789.eE+-infaN/ul", min_size=1, max_size=12))
def test_numbers_are_the_same_numbers(text, tmp_path):
    found = read(tmp_path / "t.csv", f"a,{text}\n".encode(), [Kind.ANY_ID, Kind.AUTO])
    expected = number_of(text.encode())
    assert found[1][1] == (expected is None)
    if expected is not None:
        np.testing.assert_array_equal(found[2][1], [expected])


@pytest.mark.parametrize("text", [b"1e400", b"-1e400", b"1e-400", b"0." + b"3" * 400, b"9" * 400])
def test_numbers_out_of_range(text, tmp_path):
    found = read(tmp_path / "t.csv", text, [Kind.NUMBER])
    np.testing.assert_array_equal(found[2][0], [float(text)])


def test_cells_lines_and_quotes(tmp_path):
    text = b'"a,b", 1\r\n\n"say ""hi""\nthere",2\nlast,3'
    rows, _, columns, texts, lines = read(tmp_path / "t.csv", text, [Kind.TEXT, Kind.NUMBER])
    assert rows == 3
    assert texts[0] == ["a,b", 'say "hi"\nthere', "last"]
    np.testing.assert_array_equal(columns[0], [0, 1, 2])
    np.testing.assert_array_equal(columns[1], [1.0, 2.0, 3.0])
    assert lines == ["line 1", "line 3", "line 5"]


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (b"a\nb,c\n", Kind.TEXT, "line 2: there are 2 cells, but 1 columns"),
        (b"1\nx\n", Kind.NUMBER, "line 2, column 'c0': 'x' is not a number"),
        (b"q\nq\n", Kind.NEW_ID, "line 2, column 'c0': the id 'q' is there a second time"),
        (b"a\nq\n", Kind.KNOWN_ID, "line 2, column 'c0': the id 'q' is not among the nodes"),
        (b'a\n""\n', Kind.ANY_ID, "line 2, column 'c0': the id is missing"),
        (b"a\n\xff\n", Kind.TEXT, r"line 2, column 'c0': '\\xff' is not UTF-8"),
        (b"a\nb\0\n", Kind.TEXT, "line 2, column 'c0': there is a NUL byte"),
        (b'a\n"b\nc', Kind.TEXT, "line 2, column 'c0': a quote is opened and never closed"),
        (b'a\n"b"c\n', Kind.TEXT, "line 2, column 'c0': text follows the closing quote of 'b'"),
    ],
)
def test_the_first_mistake_is_named(text, kind, words, tmp_path):
    said = read(tmp_path / "t.csv", text + b"\n1,2,3\n", [kind])
    assert isinstance(said, str)
    assert f"t.csv, {words}" in said


@pytest.mark.parametrize("form", ["{}", "user-{}", "{}000000000"])
def test_many_names_keep_their_numbers(form):
    import pyarrow as pa

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
    import pyarrow as pa

    names = Vocabulary(["3", "1", "2"])
    assert names.find(pa.array(["1", "3", "4", "-1", "99999999999"])).tolist() == [1, 0, -1, -1, -1]
    for text in ("01", "+1", "-1", "-0", "00", "0x1", " 1", "1 ", "1.0", "1e0", "0xfffffff"):
        assert names.find(pa.array([text, "3"])).tolist() == [-1, 0]

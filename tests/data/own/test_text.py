"""The table kernel against its definition, and the definition against rows written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepgat.data.tables import native
from deepgat.data.tables.text import Kind, Mistake, PlainNames, PlainTable, number_of

needs_kernel = pytest.mark.skipif(native.functions() is None, reason="the kernels are not built")
ALPHABET = b'01a,;"\n\r \t#%.e-+\0\xff\xc3\xa4nN/'


def read(make_names, make_table, text: bytes, kinds, delimiter=",", comments=False, cut=None):
    """All that a table says about a text that comes in one buffer, or in two."""
    names = make_names()
    for known in (b"a", b"1", b"0"):
        names.take(known)
    own = [names if kind >= Kind.NEW_ID else make_names() for kind in kinds]
    table = make_table(kinds, own, delimiter, comments, 1)
    taken = 0
    if cut is not None:
        taken = table.feed(memoryview(text)[:cut], False)
    if table.mistake() is None:
        table.feed(memoryview(text)[taken:], True)
    turned = table.turned()
    columns = []
    if table.mistake() is None:
        columns = [
            table.column(i).tolist()
            for i, kind in enumerate(kinds)
            if kind is not Kind.SKIP and not turned[i]
        ]
    texts = [item.texts() for item in own]
    return table.rows(), table.mistake(), turned, columns, texts, table.jumps().tolist()


def plain(text: bytes, kinds, **options):
    return read(PlainNames, PlainTable, text, kinds, **options)


def fast(text: bytes, kinds, **options):
    return read(native.NativeNames, native.NativeTable, text, kinds, **options)


def same(a, b) -> None:
    for left, right in zip(a[3], b[3], strict=True):
        np.testing.assert_array_equal(left, right)  # NaN equals NaN
    assert a[:3] + a[4:] == b[:3] + b[4:]


@needs_kernel
@settings(max_examples=400)
@given(
    text=st.lists(st.sampled_from(list(ALPHABET)), max_size=40).map(bytes),
    kinds=st.lists(st.sampled_from(list(Kind)), min_size=1, max_size=3),
    delimiter=st.sampled_from([",", ";", "\t", " "]),
    comments=st.booleans(),
    share=st.floats(0, 1),
)
def test_the_kernel_does_as_the_definition(text, kinds, delimiter, comments, share):
    options = {"delimiter": delimiter, "comments": comments}
    whole = plain(text, kinds, **options)
    same(whole, fast(text, kinds, **options))
    cut = int(share * len(text))
    same(plain(text, kinds, cut=cut, **options), fast(text, kinds, cut=cut, **options))
    same(whole, plain(text, kinds, cut=cut, **options))


@needs_kernel
@given(st.text(alphabet="0123456789.eE+-infaN/ul", max_size=12))
def test_numbers_are_the_same_numbers(text):
    cell = text.encode()
    rows, _, turned, columns, _, _ = fast(cell + b"\n", [Kind.AUTO])
    expected = number_of(cell)
    assert turned == [expected is None and bool(cell)]
    if expected is not None and rows:
        np.testing.assert_array_equal(columns[0], [expected])


@needs_kernel
@pytest.mark.parametrize("text", [b"1e400", b"-1e400", b"1e-400", b"0." + b"3" * 400, b"9" * 400])
def test_numbers_out_of_range(text):
    np.testing.assert_array_equal(fast(text, [Kind.NUMBER])[3][0], [float(text)])


@pytest.mark.parametrize("run", [plain, pytest.param(fast, marks=needs_kernel)])
def test_cells_lines_and_quotes(run):
    text = b'"a,b", 1\r\n\n"say ""hi""\nthere",2\nlast,3'
    kinds = [Kind.TEXT, Kind.NUMBER]
    rows, mistake, _, columns, texts, jumps = run(text, kinds)
    assert rows == 3
    assert mistake is None
    assert texts[0] == ["a,b", 'say "hi"\nthere', "last"]
    assert columns == [[0, 1, 2], [1.0, 2.0, 3.0]]
    assert jumps == [[1, 3], [2, 5]]  # the second row is on line 3, the third on line 5


@pytest.mark.parametrize("run", [plain, pytest.param(fast, marks=needs_kernel)])
@pytest.mark.parametrize(
    ("text", "kind", "what", "line"),
    [
        (b"a\nb,c\n", Kind.TEXT, Mistake.CELLS, 2),
        (b"1\nx\n", Kind.NUMBER, Mistake.NOT_A_NUMBER, 2),
        (b"q\nq\n", Kind.NEW_ID, Mistake.REPEATED, 2),
        (b"a\nq\n", Kind.KNOWN_ID, Mistake.UNKNOWN, 2),
        (b'a\n""\n', Kind.ANY_ID, Mistake.EMPTY_ID, 2),
        (b"a\n\xff\n", Kind.TEXT, Mistake.NOT_UTF8, 2),
        (b"a\nb\0\n", Kind.TEXT, Mistake.NUL_BYTE, 2),
        (b'a\n"b\nc', Kind.TEXT, Mistake.OPEN_QUOTE, 2),
        (b'a\n"b"c\n', Kind.TEXT, Mistake.AFTER_QUOTE, 2),
    ],
)
def test_the_first_mistake_is_kept(run, text, kind, what, line):
    mistake = run(text, [kind])[1]
    assert mistake is not None
    assert (mistake.what, mistake.line) == (what, line)


@needs_kernel
def test_many_names_keep_their_numbers():
    names, expected = native.NativeNames(), {}
    draw = np.random.default_rng(0)
    for number in draw.integers(0, 5000, 20000).tolist():
        text = [f"{number}", f"0{number}", f"user-{number}", f"ü{number * 10**6}"][number % 4]
        expected.setdefault(text, len(expected))
        assert names.take(text.encode()) == expected[text]
    assert names.texts() == list(expected)

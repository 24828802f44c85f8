"""The guide's table of formats."""

import formats as table_of_formats
from support import TESTS
from support import formats


def test_the_guide_has_the_table_that_the_tests_prove():
    page = formats.GUIDE.read_text()
    assert table_of_formats.with_table(page) == page


def test_every_format_has_its_tests():
    files = sorted(TESTS.glob("one_backend/*/formats/test_*.py"))
    texts = "".join(path.read_text() for path in files)
    names = [
        name
        for name, value in vars(formats).items()
        if isinstance(value, formats.Format)
    ]
    assert len(files) == len(formats.FORMATS)
    for name in names:
        assert f"formats.{name}," in texts

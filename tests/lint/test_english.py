"""Pages, comments, docstrings and messages are in plain technical English.

The rules find faults that a machine can tell: history, pronouns in place of a rank or
a process, clauses in place of a noun, and sentences without a subject.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import comments_and_texts, files, relative, text

# History belongs into the changelog or a decision record.
_HISTORY = re.compile(
    r"\b(used to|any more|no longer(?! than)|previously|earlier versions?)\b",
    re.IGNORECASE,
)
_WITH_HISTORY = ("CHANGELOG.md", "docs/decisions/")

# Rule -> the correction.
_RULES = {
    re.compile(
        r"\b((no|some|any|every)body|(some|any|every)one(?! of)|who(m)?ever)\b",
        re.IGNORECASE,
    ): "name the rank, the process, …",
    re.compile(
        r"(^|[.:;] )(What|Who|Whom)\b(?![^.]*\?)"
        r"|\bwhat (is|was|are|were|has been) (late|lost|sent|missing|left|owed|refused"
        r"|retransmitted|deferred|held|kept|given|measured|published|shared|there"
        r"|under way|in flight|not)\b"
        r"|\bwhat (came|comes|has come|arrived|arrives|stays|remains)\b"
    ): "write a noun, such as 'late data', in place of the clause",
    re.compile(
        r"^(Is|Are|Was|Were|Has|Have|Had|Will|Would|Comes|Goes)\b(?![^.]*\?)"
    ): "begin with the subject",
}

# Further rules for pages and for Python outside of the tests.
_STRICTER = {
    re.compile(
        r"\bwhat\b(?![^.]*\?)"
        r"|\bhow (long|much|many|often|far)\b"
        r"|\b(say|says|said|tell|tells|told|know|knows) (how|who|where|when|whether)\b",
        re.IGNORECASE,
    ): "write a noun, such as 'the duration', in place of the clause",
    re.compile(
        r"\b(whether or not|now and then|all the same|all is well|by chance|told apart"
        r"|meanwhile)\b",
        re.IGNORECASE,
    ): "write the plain term: whether, occasionally, anyway, success, at random, …",
    re.compile(
        r"\b(is|are|was|were) there\b(?! (a|an|no|any)\b)(?![^.]*\?)"
    ): "write 'exists', 'available' or 'has arrived'",
}
_NOT_STRICTER = ("ffi/", "tests/", "ARCHITECTURE.md")

# Its examples break the rules.
_EXEMPT = ("tests/lint/test_english.py",)

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Counters, whose words are those of the headers that declare them.
_COUNTER = re.compile(r"^\| `(?:rejected|send)_\w+` \| .*$", re.MULTILINE)


def _paragraphs(page: str) -> list[str]:
    """Returns the prose of a page, each paragraph, item and row on one line."""
    prose = _COUNTER.sub("", _FENCE.sub("", page))
    found = re.split(r"\n\s*\n|\n(?=[ ]*(?:[-*|>#]|\d+\.) ?)", prose)
    return [re.sub(r"^[-*|>#\d. ]+|\s*\n\s*", " ", part).strip() for part in found]


def _of_cxx(path: Path) -> Iterator[str]:
    """Yields comments, those of consecutive lines joined, and string literals."""
    block: list[str] = []
    after = -1
    for at, found in comments_and_texts(path):
        line = text(path).count("\n", 0, at)
        if found.startswith("//"):
            if line != after:
                yield " ".join(block)
                block = []
            block.append(found.lstrip("/ "))
            after = line + 1
        elif found.startswith('"'):
            yield found.strip('"')
    yield " ".join(block)


def _of_python(path: Path) -> Iterator[str]:
    """Yields comments, docstrings and strings; paragraphs of these separately."""
    for token in tokenize.generate_tokens(io.StringIO(text(path)).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")
        elif token.type == tokenize.STRING:
            for paragraph in token.string.strip("rbf\"'").split("\n\n"):
                yield " ".join(paragraph.split())


def _prose(path: Path) -> list[str]:
    if path.suffix == ".md":
        return _paragraphs(text(path))
    return list(_of_cxx(path) if path.suffix in {".h", ".cc"} else _of_python(path))


def _faults(prose: list[str], *, history: bool, stricter: bool = False) -> list[str]:
    rules = _RULES | (_STRICTER if stricter else {})
    if not history:
        rules[_HISTORY] = "state the present; history goes to docs/decisions"
    return [
        f"{match.group().strip()!r} in {paragraph[:70]!r}: {correction}"
        for paragraph in prose
        for rule, correction in rules.items()
        for match in rule.finditer(paragraph)
    ]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in files(".md", ".py", ".pyi", ".h", ".cc")
        if not relative(path).startswith(_EXEMPT)
    ],
    ids=relative,
)
def test_prose_is_plain(path):
    history = relative(path).startswith(_WITH_HISTORY)
    stricter = not relative(path).startswith(_NOT_STRICTER)
    found = _faults(_prose(path), history=history, stricter=stricter)
    assert not found, "\n".join([relative(path), *found])


@pytest.mark.parametrize(
    "sentence",
    [
        "It used to take 4 ms.",
        "A rank does not wait any more.",
        "A rank no longer waits.",
        "Previously a rank waited.",
        "An earlier version waited.",
        "Nobody waits.",
        "It ends for whoever waits.",
        "Anyone may send.",
        "What a receiver refuses is sent again.",
        "It waits: What it has is sent.",
        "A drain returns what is late.",
        "It counts what came in time.",
        "Has no members.",
        "Was sent before.",
    ],
)
def test_the_rules_find_a_fault(sentence):
    assert _faults([sentence], history=False)


@pytest.mark.parametrize(
    "sentence",
    [
        "It prints what the kernel grants.",
        "How long a rank sleeps.",
        "The page says how the hosts are made.",
        "Exit code 0: all is well.",
        "Ranks call now and then.",
        "The data that is there is summed.",
    ],
)
def test_the_stricter_rules_find_a_fault(sentence):
    assert _faults([sentence], history=False, stricter=True)


@pytest.mark.parametrize(
    "sentence",
    [
        "A call takes no longer than a second.",
        "What is the cause of the stall?",
        "The page states how ranks meet.",
        "Is its process alive, and can UDP pass both ways?",
        "Every one of the ranks has called.",
        "The message names the expected value.",
        "Does the same for a duration.",
    ],
)
def test_the_rules_leave_plain_sentences_alone(sentence):
    assert not _faults([sentence], history=False, stricter=True)


def test_output_in_a_page_is_not_prose():
    page = "A call ends.\n\n```text\nno longer, nobody\n```\n"
    assert not _faults(_paragraphs(page), history=False)


def test_words_that_span_two_lines_are_found():
    assert _faults(_paragraphs("- A rank waits\n  no\n  longer.\n"), history=False)

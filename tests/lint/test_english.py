"""Pages, comments, docstrings and messages are in plain technical English.

The rules find faults that a machine can tell: history, pronouns in place of a rank or
a process, clauses in place of a noun, sentences without a subject, and fragments that
only make sense together with the code.
"""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
    re.compile(
        r"(^|[.:;] )Of\b"
    ): "name the thing, such as 'the deadline of both stages'",
    re.compile(
        r"(^|[.:;] )Those\b"
    ): "name the things, such as 'the options of a lane'",
    re.compile(
        r"\bLikewise\b|(^|[.:;] )The same (as|between|for|of|on|through)\b"
    ): "repeat what is the same: 'the deadline of another member'",
    re.compile(r"\bthe own\b", re.IGNORECASE): "name the owner: 'this rank's shard'",
    re.compile(r"(^|[.:;] )Beside\b"): "begin with the subject: 'other programs …'",
    re.compile(
        r"^By (direction|element|lane|member|name|number|owner|rank|stage|token)\b"
        r"|^(As|At(?! (least|most)\b)|By|For|From|In|On|With|Without) [^.,:;?]{1,28}\.$"
    ): "write a sentence or a noun phrase, such as 'one for each rank'",
}

# Rules for comments behind code.
_TRAILING = {
    re.compile(
        r"^(after|and|as|at(?! (least|most)\b)|before|by|for|from|in|of|on|or|since"
        r"|that|to|under|until|up to|when|where|which|while|whose|with|within"
        r"|without)\b",
        re.IGNORECASE,
    ): "write a noun phrase, such as 'deadline of both stages', or a sentence",
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


def _behind_code(path: Path) -> Iterator[str]:
    """Yields the comments of C++ and Python that follow code in their line."""
    source = text(path)
    if path.suffix in {".h", ".cc"}:
        for at, found in comments_and_texts(path):
            before = source[source.rfind("\n", 0, at) + 1 : at]
            if found.startswith("//") and before.strip():
                yield found.lstrip("/ ")
    elif path.suffix in {".py", ".pyi"}:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            before = token.line[: token.start[1]]
            if token.type == tokenize.COMMENT and before.strip():
                yield token.string.lstrip("# ")


def _prose(path: Path) -> list[str]:
    if path.suffix == ".md":
        return _paragraphs(text(path))
    return list(_of_cxx(path) if path.suffix in {".h", ".cc"} else _of_python(path))


def _faults(prose: list[str], *, history: bool, stricter: bool = False) -> list[str]:
    rules = _RULES | (_STRICTER if stricter else {})
    if not history:
        rules[_HISTORY] = "state the present; history goes to docs/decisions"
    return list(_breaches(prose, rules))


def _breaches(
    prose: Iterable[str], rules: Mapping[re.Pattern[str], str]
) -> Iterator[str]:
    for paragraph in prose:
        for rule, correction in rules.items():
            for match in rule.finditer(paragraph):
                found = match.group().strip()
                yield f"{found!r} in {paragraph[:70]!r}: {correction}"


def test_prose_is_plain():
    found = []
    for path in files(".md", ".py", ".pyi", ".h", ".cc"):
        name = relative(path)
        if not name.startswith(_EXEMPT):
            history = name.startswith(_WITH_HISTORY)
            stricter = not name.startswith(_NOT_STRICTER)
            faults = _faults(_prose(path), history=history, stricter=stricter)
            faults += _breaches(_behind_code(path), _TRAILING)
            found += [f"{name}: {fault}" for fault in faults]
    assert not found, "\n".join(found)


def test_the_rules_find_a_fault():
    sentences = (
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
        "Of both stages together.",
        "Deadlines in seconds. Of two the larger one.",
        "Those of a lane, or none.",
        "Likewise.",
        "The same for a call that has ended.",
        "It adds the own contribution.",
        "Beside bursts the links are full.",
        "By rank: the last datagram.",
        "From the opening of the call.",
    )
    for sentence in sentences:
        assert _faults([sentence], history=False), sentence


def test_the_stricter_rules_find_a_fault():
    sentences = (
        "It prints what the kernel grants.",
        "How long a rank sleeps.",
        "The page says how the hosts are made.",
        "Exit code 0: all is well.",
        "Ranks call now and then.",
        "The data that is there is summed.",
    )
    for sentence in sentences:
        assert _faults([sentence], history=False, stricter=True), sentence


def test_the_rules_leave_plain_sentences_alone():
    sentences = (
        "A call takes no longer than a second.",
        "What is the cause of the stall?",
        "The page states how ranks meet.",
        "Is its process alive, and can UDP pass both ways?",
        "Every one of the ranks has called.",
        "The message names the expected value.",
        "Does the same for a duration.",
        "Rounding errors: of sums in this rank's shard.",
        "The same datagram may be delivered twice.",
        "From now on only the existing sums may be asked for.",
        "By default the kernel chooses a port.",
        "The slice has its own members.",
    )
    assert not _faults(sentences, history=False, stricter=True)


def test_a_comment_behind_code_stands_alone():
    for part in ("of both stages", "by rank", "in order", "For the size of a word."):
        assert list(_breaches([part], _TRAILING)), part
    whole = ("0: no limit", "deadline of both stages", "at most one", "one per rank")
    assert not list(_breaches(whole, _TRAILING))


def test_comments_behind_code_are_found(tmp_path):
    header = tmp_path / "a.h"
    header.write_text('// of a line\nint a = 0;  // of code\nauto b = "// of text";\n')
    module = tmp_path / "a.py"
    module.write_text('# of a line\na = 0  # of code\nb = "# of text"\n')
    assert list(_behind_code(header)) == list(_behind_code(module)) == ["of code"]


def test_output_in_a_page_is_not_prose():
    page = "A call ends.\n\n```text\nno longer, nobody\n```\n"
    assert not _faults(_paragraphs(page), history=False)


def test_words_that_span_two_lines_are_found():
    assert _faults(_paragraphs("- A rank waits\n  no\n  longer.\n"), history=False)

"""The documents hold: every command runs, every output that has no times in it is what is printed, every link leads
somewhere, and the reference pages name every key, command and error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from fullbore import errors
from fullbore.cli.main import COMMANDS
from fullbore.config.run import RunConfig
from tests.e2e.documents import DOCUMENTS, ROOT, Section, fenced, headings, links, sections

SECTIONS = [section for document in DOCUMENTS for section in sections(document) if section.commands]
_TIMEOUT_S = 110


@pytest.mark.timeout(360)  # several training runs in one section
@pytest.mark.parametrize(
    "section",
    [pytest.param(section, id=section.name, marks=[pytest.mark.slow] if section.slow else []) for section in SECTIONS],
)
def test_the_commands_of_a_section_do_what_it_says(section: Section, tmp_path: Path) -> None:
    for name, text in section.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in section.commands:
        if command.how == "exists":
            assert _exists(command.text), f"{section.name}: there is nothing behind `{command.text}`"
            continue
        code, output = _run(command.text, folder=tmp_path)
        assert code == command.exit_code, f"{section.name}: `{command.text}` exited with {code}:\n{output}"
        if command.how == "compare":
            assert _fits(output, command.shown), f"{section.name}: `{command.text}` printed:\n{output}"
        if command.how == "lines" and command.shown:
            assert _says(output, command.shown), f"{section.name}: `{command.text}` has other lines:\n{output}"
        if command.loss_within is not None:
            off = abs(_loss(output) - _loss("\n".join(command.shown)))
            assert off <= command.loss_within, f"{section.name}: `{command.text}` has another loss:\n{output}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for path, anchor in links(document):
        target = document.parent / path if path else document
        assert target.exists(), f"{document.name} links to {path}, which does not exist"
        if anchor:
            assert anchor in headings(target), f"{document.name} links to {path}#{anchor}; no such heading"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda example: example.name)
def test_every_example_is_shown_as_it_is(example: Path) -> None:
    shown = [text for document in DOCUMENTS for text in fenced(document, "python")]
    assert example.read_text(encoding="utf-8") in shown


def test_every_extra_is_described() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev"}  # of contributors
    part = (ROOT / "README.md").read_text(encoding="utf-8").split("## Install")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == extras - {"all"}
    (everything,) = project["optional-dependencies"]["all"]
    assert set(re.findall(r"\w+", everything)) == extras - {"all", "bench"} | {"fullbore"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_a_page_read_in_one_folder_makes_each_run_once(document: Path) -> None:
    """A run folder is never written over, so a second section that names it would fail for a reader."""
    names = [name for one in sections(document) for c in one.commands for name in _run_folders(c.text)]
    assert sorted(names) == sorted(set(names))


def test_what_the_readme_shows_can_be_pasted_twice() -> None:
    """A run into a folder with a name is refused the second time."""
    commands = [c.text for one in sections(ROOT / "README.md") for c in one.commands]
    assert any("fullbore train" in text for text in commands)
    assert [name for text in commands for name in _run_folders(text)] == []


def test_every_target_that_a_newcomer_needs_is_in_the_readme() -> None:
    """Nobody has to read the Makefile to find one."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"setup", "demo", "test", "check"} <= set(targets)
    for target in ("setup", "demo", "test", "check"):
        assert f"make {target}" in readme


def test_every_command_has_its_place_in_the_reference() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## `fullbore {name}" in text


def test_every_key_of_the_run_file_is_described_with_its_default() -> None:
    text = (ROOT / "docs" / "run-file.md").read_text(encoding="utf-8")
    for table in msgspec.structs.fields(RunConfig):
        part = text.split(f"## `[{table.name}]`")[1].split("\n## ")[0]
        rows = {
            key: default
            for keys, default in re.findall(r"^\| (`.+?`) \| (.+?) \|", part, re.MULTILINE)
            for key in re.findall(r"`(\w+)`", keys)
        }
        fields = msgspec.structs.fields(table.type)
        assert set(rows) == {item.name for item in fields}
        for item in fields:
            assert _value(rows[item.name]) == getattr(table.type(), item.name), f"{table.name}.{item.name}"


def test_every_error_is_in_the_tree() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for name in errors.__all__:
        assert re.search(rf"^[│├└─ ]*{name}\b", text, re.MULTILINE), f"errors.md does not draw {name}"


def test_every_schedule_has_its_page() -> None:
    code, output = _run("fullbore schedule list --json", folder=ROOT)
    assert code == 0
    for entry in json.loads(output)["schedules"]:
        assert (ROOT / "docs" / "schedules" / f"{entry['name']}.md").is_file()


def test_a_console_block_that_does_not_say_how_it_is_run_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# page\n\n```console\n$ true\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page.md:3: a console block needs <!-- run: ... -->"):
        sections(page)


def test_three_dots_stand_for_any_lines() -> None:
    shown = ("a", "...", "c")
    assert _fits("a\nb\nb\nc\n", shown)
    assert _fits("a\nc\n", shown)
    assert not _fits("a\nb\n", shown)
    assert not _fits("a\nc\nd\n", shown)


def test_lines_are_compared_up_to_their_first_number() -> None:
    shown = (
        "step 1/9  loss 5.1",
        "...",
        "step 9/9  loss 4.2",
        "",
        "r0 F0-F1-",
        "bubble   9.1%",
        "clocks   agree to 5 us",
    )
    assert _says("step 1/2  loss 3\n\nr0 F0\nr1 .F0\nbubble 10 %\nclocks agree to 71.5 us\n", shown)
    assert not _says("step 1/2\nbubble 9.1%\n", shown), "a line is no longer printed"
    assert not _says("step 1/2\nidle 3%\nbubble 9.1%\nclocks agree to 5 us\n", shown), "a line is new"
    assert not _says("step 1/2\nclocks agree to 5 us\nbubble 9.1%\n", shown), "their order is another"
    assert _says("step 1/2\nidle 3%\nbubble 9.1%\nclocks agree to 5 us\n", (*shown[:4], "...", *shown[4:]))


def test_the_warning_of_a_disturbed_measurement_may_come_unasked() -> None:
    printed = "measuring 8 layers\nwarning: the usual round of some layers took longer\nrun  runs/first\n"
    assert _says(printed, ("measuring 8 layers", "run  runs/first"))
    assert not _says(printed.replace("the usual round", "a disk"), ("measuring 8 layers", "run  runs/first"))


def test_the_paragraph_on_a_slow_stage_may_come_unasked() -> None:
    printed = "clocks 5 us\n\nslow stage  1 on rank 1\nreason  compute\n\nevery span 3\n"
    assert _says(printed, ("clocks 7 us", "", "every span 3"))
    assert not _says("clocks 5 us\n\nevery span 3\n", tuple(printed.splitlines()))


def _run(command: str, *, folder: Path) -> tuple[int, str]:
    """Exit code, and stdout and stderr as a reader sees them. Nothing outlives the call."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NO_COLOR", "OMP_NUM_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PATH": path, "COLUMNS": "100", "LINES": "24", "PET_STANDALONE": "1"}
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output


def _fits(output: str, shown: Sequence[str]) -> bool:
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in shown)
    return re.fullmatch(pattern, output.rstrip("\n") + "\n") is not None


def _says(output: str, shown: Sequence[str]) -> bool:
    """The same lines in the same order, as far as `_labels` reads them. A busy machine has slow stages of its own, and
    is told so."""
    output = re.sub(r"^warning: the usual round of some layers took longer.*\n", "", output, flags=re.MULTILINE)
    if not any(line.startswith("slow stage") for line in shown):
        output = re.sub(r"^slow stage .*\n(?:.+\n)*", "", output, flags=re.MULTILINE)
    return _fits("\n".join(_labels(output.splitlines())), _labels(shown))


def _labels(lines: Sequence[str]) -> list[str]:
    """Each line up to its first number or colon; of lines alike the first, and none of rows without a word."""
    found: list[str] = []
    for line in lines:
        label = line if line == "..." else " ".join(re.split(r"[\d:]", line, maxsplit=1)[0].split())
        if len(label) < 2 or found[-1:] == [label]:
            continue
        if found[-1:] == ["..."] and found[-2:-1] == [label]:
            found.pop()  # the dots stood for more of the same
        else:
            found.append(label)
    return found


def _loss(output: str) -> float:
    found = re.search(r"^loss +(\d+\.\d+)", output, re.MULTILINE)
    assert found is not None, f"no loss in:\n{output}"
    return float(found[1])


def _exists(command: str) -> bool:
    """A target of the Makefile, an installation of this folder with extras that there are, or tests in a folder."""
    program, *arguments = (word for word in command.split() if not re.match(r"[A-Z_]+=", word))
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in arguments)
    if program.endswith("python"):
        return arguments[:2] == ["-m", "pytest"] and (ROOT / arguments[-1]).is_dir()
    assert program == "pip", command
    extras = re.findall(r"\[(.+?)\]", arguments[-1])
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in ",".join(extras).split(",") if extra)


def _run_folders(command: str) -> list[str]:
    """Those that it makes."""
    return re.findall(r"\btrain\.run_dir=(\S+)", command)


def _value(default: str) -> object:
    """What a default in a table means: a TOML value in backticks, or `absent`."""
    if default == "absent":
        return None
    value = tomllib.loads(f"value = {default.strip('`')}")["value"]
    return tuple(value) if isinstance(value, list) else value

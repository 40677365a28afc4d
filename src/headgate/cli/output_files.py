"""The files that commands write reports to. A page replaces only an older page, and no report replaces books."""

from __future__ import annotations

from pathlib import Path

import click

_PAGE = b"<!doctype html"
_STANDARD_OUTPUT = Path("-")
_BOOKS = (b"SQLite format 3\0", b'{"kind":', b"\x1f\x8b")
"""The first bytes of books: of a database, of lines of JSON, of lines that were rotated and compressed."""


def page_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """The file that a page is written to. An existing log or policy, as after `--report *.log`, is not replaced."""
    beginning = _beginning(value)
    if beginning and not beginning.lower().startswith(_PAGE):
        raise click.BadParameter(f"{value} is there, and is no page: name a new file, or an older page to replace it")
    return value


def report_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """The file that a report on books is written to. Existing books are not replaced."""
    if _beginning(value).startswith(_BOOKS):
        raise click.BadParameter(f"{value} is there, and holds books: name a new file, or an older report")
    return value


def check_outputs(report: Path | None, *, as_json: bool) -> None:
    """Raise UsageError where a page and JSON would both go to standard output."""
    if as_json and report == _STANDARD_OUTPUT:
        raise click.UsageError("--report - writes the page to standard output, and so does --json: choose one")


def write_report(file: Path, text: str) -> None:
    """Write a report, and print its path; `-` is standard output. Raises OSError that names the file."""
    if file == _STANDARD_OUTPUT:
        click.echo(text.encode(errors="replace"), nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8", errors="replace", newline="")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    click.echo(f"report in {file}", err=True)


def _beginning(file: Path | None) -> bytes:
    """The first bytes of a file; none for a device or a file that does not exist. Its folder must exist."""
    if file in (None, _STANDARD_OUTPUT):
        return b""
    if not file.parent.is_dir():
        raise click.BadParameter(f"there is no directory {file.parent}")
    if file.is_dir():
        raise click.BadParameter(f"{file} is a directory: name a file in it")
    if not file.is_file():
        return b""
    try:
        with file.open("rb") as opened:
            return opened.read(16)
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}") from None

"""The command as people run it: results on stdout, words on stderr, exit codes, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import pytest
from running import run_headgate

import headgate
from headgate import Limiter, SharedStore, core

pytestmark = pytest.mark.integration

SHOP = str(Path(__file__).parents[2] / "examples" / "shop.yaml")
LINE = '203.0.113.9 - - [17/May/2015:10:05:{:02d} +0000] "POST /api/login HTTP/1.1" 200 5 "-" "agent"'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("\n".join([LINE.format(second) for second in range(12)] + ["a broken line \x1b[31m", ""]))
    return path


def test_info_shows_version_core_and_stores() -> None:
    result = run_headgate("info")
    assert result.returncode == 0
    assert f"headgate {headgate.__version__}" in result.stdout
    assert core.CORE in result.stdout
    assert "memory" in result.stdout
    facts = json.loads(run_headgate("info", "--json", HEADGATE_CORE="python").stdout)
    assert (facts["core"], facts["why_not_native"]) == ("python", "HEADGATE_CORE=python")
    assert facts["stores"][:2] == ["memory://", "redis://"]  # the shared store needs the native core


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "headgate"], [str(Path(sys.executable).parent / "headgate")]]
)
def test_a_core_that_is_none_is_a_message_of_the_command(command: list[str]) -> None:
    environment = {**os.environ, "HEADGATE_CORE": "bogus"}
    result = subprocess.run(
        [*command, "info"], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == 'headgate: HEADGATE_CORE is "native" or "python", not \'bogus\'\n'


def test_a_core_that_is_none_is_a_config_error_of_a_program() -> None:
    program = "try:\n    import headgate\nexcept ValueError as error:\n    print(type(error).__name__, error)\n"
    environment = {**os.environ, "HEADGATE_CORE": "bogus"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    assert result.stdout == 'ConfigError HEADGATE_CORE is "native" or "python", not \'bogus\'\n'


def test_validate_prints_each_good_rule_and_every_problem(tmp_path: Path) -> None:
    good = run_headgate("validate", SHOP)
    assert (good.returncode, good.stderr) == (0, "")
    assert "4 rules of shop, no problems" in good.stdout
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nrules:\n  - {name: a, by: [usr], limits: 5/minut}\n  - {name: b}\n")
    result = run_headgate("validate", str(bad))
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{bad}:3:20: rules[0].by[0]: no identity is named 'usr'" in result.stderr
    assert f"{bad}:3:26: rules[0].limits: cannot read" in result.stderr
    assert "4 problems" in result.stderr


def test_validate_finds_what_is_wrong_with_prices_of_models(tmp_path: Path) -> None:
    policy = tmp_path / "llm.yaml"
    policy.write_text(
        "version: 1\nnamespace: llm\nllm:\n  prices:\n"
        "    own: {input: 1, output: 2}\n"
        "    half: {input: 1}\n"
        "    own speed=standard: {input: 1, output: 2}\n"
        "    gpt-*: {input: 1, output: 2}\n"
        "rules: [{name: user, by: [user], limits: 20 usd/day in UTC}]\n"
    )
    result = run_headgate("validate", str(policy))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"{policy}:6:5: llm.prices.half: output is missing: dollars for a million tokens, 0 if they are free\n"
        f"{policy}:7:5: llm.prices['own speed=standard']: speed=standard is what calls usually have: leave it out\n"
        f"{policy}:8:5: llm.prices['gpt-*']: a price is that of one model: write a name without *\n"
        f"headgate: {policy}: 3 problems\n"
    )


def test_validate_finds_more_limits_of_one_request_than_a_shared_zone_charges(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    rules = "".join(f"  - {{name: r{n}, by: [ip], limits: 100/hour fixed}}\n" for n in range(257))
    file.write_text(f"version: 1\nstore: shared://{tmp_path}/zone\nrules:\n{rules}")
    result = run_headgate("validate", str(file))
    assert result.returncode == 1
    assert f"{file}:2:1: store: rule r0 and 256 more apply to the same request with 257 limits" in result.stderr
    assert not (tmp_path / "zone").exists()
    file.write_text(f"version: 1\nrules:\n{rules}")
    assert run_headgate("validate", str(file)).returncode == 0


def test_validate_takes_several_files_and_standard_input(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 2\nrules: [{name: a, by: [], limits: 1/s}]\n")
    good = Path(SHOP).read_text()
    result = run_headgate("validate", SHOP, str(bad), "-", "/", input=good)
    assert result.returncode == 1
    assert result.stdout == f"{SHOP}: 4 rules of shop, no problems\nstandard input: 4 rules of shop, no problems\n"
    assert result.stderr == (
        f"{bad}:1:1: version: must be 1, not 2\nheadgate: {bad}: 1 problem\nheadgate: /: Is a directory\n"
    )
    assert run_headgate("validate", SHOP, "-", input=good).returncode == 0


def test_validate_prints_json(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 2\nrules: [{name: a, by: [], limits: 1/s}]\n")
    policy = "version: 1\nrules: [{name: a, by: [], limits: 10/second; 10/second}]\n"
    result = run_headgate("validate", "--json", "-", str(bad), "none.yaml", input=policy)
    assert (result.returncode, result.stderr) == (1, "")
    doubled = '"10/second" is there twice: the second refuses nothing more, and costs a state of its own'
    nothing: dict[str, object] = {"valid": False, "namespace": None, "rules": None, "warnings": []}
    missing = {"path": "", "message": "No such file or directory", "line": 0, "column": 0}
    assert json.loads(result.stdout) == [
        {
            "file": "standard input", "valid": True, "namespace": "default", "rules": 1, "problems": [],
            "warnings": [{"path": "rules[0].limits", "message": doubled, "line": 2, "column": 27}],
        },
        {
            "file": str(bad), **nothing,
            "problems": [{"path": "version", "message": "must be 1, not 2", "line": 1, "column": 1}],
        },
        {"file": "none.yaml", **nothing, "problems": [missing]},
    ]  # fmt: skip


def test_validate_warns_of_what_can_hardly_be_meant() -> None:
    policy = "version: 1\nrules: [{name: a, by: [], limits: 10/second; 10/second}]\n"
    result = run_headgate("validate", "-", input=policy)
    assert (result.returncode, result.stdout) == (0, "standard input: 1 rule of default, 1 warning\n")
    assert result.stderr.startswith('standard input:2:27: warning: rules[0].limits: "10/second" is there twice')


def test_schema_prints_a_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(run_headgate("schema").stdout))


def test_explain_prints_the_rules_keys_and_limits_of_a_request_and_why() -> None:
    result = run_headgate("explain", SHOP, "--method", "POST", "--path", "/api/login", "--ip", "203.0.113.9",
                        "--header", "X-Tier:pro")  # fmt: skip
    assert result.returncode == 0
    assert "+ login      method POST; path /api/login" in result.stdout
    assert "counted by ip: key 203.0.113.9" in result.stdout
    assert "limits 5/minute" in result.stdout
    assert "- everyone   it is a default, and login matched" in result.stdout


def test_replay_prints_a_table_of_what_would_have_been_refused(log: Path) -> None:
    result = run_headgate("replay", str(log), "--policy", SHOP)
    assert result.returncode == 0
    assert "12 requests, 5 passed, 7 refused (58.33 %)" in result.stdout
    assert (
        "login refused most often: 203.0.113.9 (7)\n  worst minute 2015-05-17 10:05 UTC: 7 refused\n" in result.stdout
    )
    assert "2015-05-17 10:05:00 to 10:05:11 UTC" in result.stdout
    assert "1 line could not be read" in result.stderr
    assert "access.log:13: it is not: client ident user" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_replay_prints_json(log: Path) -> None:
    summary = json.loads(run_headgate("replay", str(log), "--policy", SHOP, "--json").stdout)
    assert {name: summary[name] for name in ("requests", "allowed", "denied", "unparsed")} == {
        "requests": 12, "allowed": 5, "denied": 7, "unparsed": 1,
    }  # fmt: skip
    login = summary["rules"][0]
    assert (login["name"], login["keys"], login["top"]) == ("login", 1, [{"key": "203.0.113.9", "denied": 7}])


def test_replay_reads_standard_input_compressed_or_not(log: Path) -> None:
    for data in (log.read_bytes(), gzip.compress(log.read_bytes())):
        result = subprocess.run(
            [sys.executable, "-m", "headgate", "replay", "-", "--policy", SHOP, "--json"],
            input=data,
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert json.loads(result.stdout)["requests"] == 12


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "-", "--path", "/x"],
        ["capacity", "-", "--users", "9", "--rate", "9"],
        ["replay", "{log}", "--policy", "-", "--compare", SHOP],
        ["replay", "{log}", "--policy", SHOP, "--compare", "-"],
    ],
)
def test_a_policy_may_be_standard_input(command: list[str], log: Path) -> None:
    result = run_headgate(*[word.format(log=log) for word in command], input=Path(SHOP).read_text())
    assert (result.returncode, "login" in result.stdout) == (0, True)
    broken = run_headgate(*[word.format(log=log) for word in command], input="version: 1\nrules: 7\n")
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "standard input:2:1: rules: must be a list" in broken.stderr


def test_a_rate_is_written_out_by_capacity() -> None:
    result = run_headgate("capacity", SHOP, "--users", "9", "--rate", "1234567.5")
    assert "1,234,567.5 decisions a second" in result.stdout


def test_a_tier_is_named_as_it_is_by_capacity() -> None:
    policy = """
        version: 1
        tiers: {from: {header: X-Tier}, default: "[/free]"}
        rules: [{name: a, by: [ip], limits: {"[/free]": 5/minute, "[bold]": 6/minute}}]
    """
    result = run_headgate("capacity", "-", "--users", "9", "--rate", "9", input=policy)
    assert (result.returncode, result.stderr) == (0, "")
    assert "a ([bold])" in result.stdout


def test_what_clients_sent_reaches_the_terminal_of_a_replay_as_text_alone(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    sent = "x\x9b31m\u202eabc\u2028y\x85z\u00e9"  # C1 controls, an override of the direction, ends of lines
    log.write_text(LINE.format(1).replace("agent", sent) + "\n" + LINE.format(2).replace("agent", sent) + "\n")
    policy = "version: 1\nidentities: {ua: {header: User-Agent}}\nrules: [{name: a, by: [ua], limits: 1/hour}]\n"
    result = run_headgate("replay", str(log), "--policy", "-", "--header", "User-Agent=agent", input=policy)
    assert "a refused most often: x?31m?abc?y?z\u00e9 (1)" in result.stdout
    assert "busiest keys: x?31m?abc?y?z\u00e9 (2)" in result.stdout


def test_replay_writes_a_report_and_compares(log: Path, tmp_path: Path) -> None:
    wider = tmp_path / "wider.yaml"
    wider.write_text("version: 1\nrules:\n  - {name: login, by: [ip], limits: 8/minute log}\n")
    page = tmp_path / "report.html"
    result = run_headgate("replay", str(log), "--policy", SHOP, "--compare", str(wider), "--report", str(page))
    assert result.returncode == 0
    assert f"report in {page}" in result.stderr.replace("\n", "")
    assert "What changes" in page.read_text()
    text = run_headgate("replay", str(log), "--policy", SHOP, "--compare", str(wider)).stdout
    told_of = " ".join(text.split())
    assert f"{wider} refuses 0 requests that {SHOP} lets pass, and lets 3 pass that it refuses" in told_of
    assert "newly passed, by rule: login (3)" in told_of
    assert "newly passed, by key: 203.0.113.9 (3)" in told_of


def test_a_page_may_go_to_standard_output(log: Path) -> None:
    result = run_headgate("replay", str(log), "--policy", SHOP, "--report", "-")
    assert (result.returncode, result.stdout[:15].lower(), "report in" in result.stderr) == (
        0,
        "<!doctype html>",
        False,
    )
    both = run_headgate("replay", str(log), "--policy", SHOP, "--report", "-", "--json")
    assert (both.returncode, both.stdout, "choose one" in both.stderr) == (2, "", True)
    assert not Path("-").exists()


def test_replay_replaces_no_file_but_an_older_page(log: Path, tmp_path: Path) -> None:
    """`--report *.log` names the first log as the page."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules:\n  - {name: login, by: [ip], limits: 8/minute log}\n")
    other = tmp_path / "other.log"
    other.write_bytes(log.read_bytes())
    for file in (log, policy, other):
        before = file.read_bytes()
        result = run_headgate("replay", str(log), "--policy", str(policy), "--report", str(file))
        assert (result.returncode, file.read_bytes()) == (2, before)
        assert f"{file} is there, and is no page: name a new file, or an older page to replace it" in result.stderr
    page = tmp_path / "empty.html"
    page.touch()
    for _ in range(2):
        assert run_headgate("replay", str(log), "--policy", str(policy), "--report", str(page)).returncode == 0
    result = run_headgate("replay", str(log), "--policy", str(policy), "--report", str(tmp_path / "none" / "page.html"))
    assert result.returncode == 2
    assert f"there is no directory {tmp_path / 'none'}" in result.stderr


@pytest.mark.parametrize("header", ["X-API-Key", "x_api_key"])
def test_replay_takes_headers_and_fields_from_the_log(tmp_path: Path, header: str) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "when,who,url,key\n" + "".join(f"{second},1.1.1.1,/api/search/x,k{second % 2}\n" for second in range(8))
    )
    result = run_headgate("replay", str(log), "--policy", SHOP, "--json", "--field", "time=when", "--field",
                        "client=who", "--header", f"{header}=key")  # fmt: skip
    search = json.loads(result.stdout)["rules"][1]
    assert (search["matched"], search["keys"]) == (8, 2)


def test_replay_shows_texts_of_the_log_as_they_are(tmp_path: Path) -> None:
    log = tmp_path / "log[bold].log"
    log.write_text("".join(LINE.format(second).replace("203.0.113.9", "[/a][red]x") + "\n" for second in range(9)))
    policy = tmp_path / "p[red].yaml"
    policy.write_text("version: 1\nrules:\n  - {name: all, by: [ip], limits: 3/minute}\n")
    result = run_headgate("replay", str(log), "--policy", str(policy), "--format", "common")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{policy}: 9 requests" in " ".join(result.stdout.split())  # a line that is too long is wrapped
    assert "[/a][red]x (9)" in result.stdout
    assert "[/a][red]x (6)" in result.stdout


def test_a_log_of_which_nothing_can_be_read_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("no log at all\nnor this\n")
    result = run_headgate("replay", str(log), "--policy", SHOP, "--format", "common")
    assert result.returncode == 1
    assert "2 lines could not be read" in result.stderr
    assert "no line could be read as common: --format auto looks for what fits" in result.stderr
    assert "say how with --format" not in result.stderr
    result = run_headgate("replay", str(log), "--policy", SHOP)
    assert (result.returncode, result.stderr) == (
        1,
        f"headgate: {log}: the format is not recognized; say which with --format\n",
    )


def test_of_several_logs_the_one_of_which_nothing_can_be_read_is_named(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}\n' * 9)
    third = tmp_path / "third.json"
    third.write_text('{"b": 1}\n')
    result = run_headgate("replay", str(other), str(log), str(third), "--policy", SHOP)
    assert (result.returncode, "12 requests" in result.stdout) == (1, True)
    assert f"headgate: {other}: no line could be read" in result.stderr
    assert result.stderr.endswith(f"; the first is line 1: it has no time; nor of {third}\n")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"time,client\n", gzip.compress(b"", mtime=0)])
def test_a_log_without_a_request_is_reported(log: Path, tmp_path: Path, content: bytes) -> None:
    empty = tmp_path / "empty.log"
    empty.write_bytes(content)
    for others in ([], [str(log)]):
        result = run_headgate("replay", str(empty), *others, "--policy", SHOP)
        assert result.returncode == 0
        assert result.stderr.startswith(
            f"{empty}: there is no request in it: no lines, or none but blank ones and names of columns\n"
        )
        assert "could be read" not in result.stdout


def test_replay_judges_a_stretch_of_time(log: Path) -> None:
    local = ["--from", "2015-05-17 12:05:03", "--to", "2015-05-17 12:05:08", "--timezone", "Europe/Zurich"]
    for more in (["--from", "2015-05-17T10:05:03Z", "--to", "2015-05-17 12:05:08+02:00"], local):
        result = run_headgate("replay", str(log), "--policy", SHOP, *more)
        assert result.returncode == 0
        assert "5 requests, 5 passed, 0 refused (0.00 %)" in result.stdout
        assert "2015-05-17 10:05:03 to 10:05:07 UTC; 7 requests outside" in result.stdout
    days = run_headgate(
        "replay", str(log), "--policy", SHOP, "--from", "2015-05-17", "--to", "2015-05-17T10:06", "--json"
    )
    assert json.loads(days.stdout)["outside"] == 0
    none = run_headgate("replay", str(log), "--policy", SHOP, "--from", "2015-05-18")
    assert (none.returncode, none.stdout) == (0, f"{SHOP}: no request of this time\n")


def test_a_damaged_log_is_judged_as_far_as_it_goes_and_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "access.log.gz"
    log.write_bytes(gzip.compress((LINE.format(1) + "\n").encode() * 9) + b"garbage")
    result = run_headgate("replay", str(log), "--policy", SHOP)
    assert result.returncode == 1
    assert "9 requests, 5 passed, 4 refused" in result.stdout
    assert result.stderr.startswith(f"{log}:10: the data after its end is not part of it (gzip: ")
    assert result.stderr.endswith("headgate: the result is of a part of the logs: not all could be unpacked\n")
    assert json.loads(run_headgate("replay", str(log), "--policy", SHOP, "--json").stdout)["damaged"][0]["line"] == 10


def test_replay_reads_from_a_pipe_that_is_named(log: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(log.read_bytes()))
    writer.start()
    result = run_headgate("replay", str(fifo), "--policy", SHOP, "--json")
    writer.join()
    assert json.loads(result.stdout)["requests"] == 12


def test_replay_charges_what_the_log_says(tmp_path: Path) -> None:
    log = tmp_path / "trace.csv"
    log.write_text("TIMESTAMP,In,Out\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
    policy = tmp_path / "tokens.yaml"
    policy.write_text("version: 1\nrules: [{name: tokens, by: [], limits: 500/minute log}]\n")
    result = run_headgate("replay", str(log), "--policy", str(policy), "--field", "cost=In+Out")
    assert "their cost is 923: 418 passed, 505 refused (54.71 %)" in result.stdout


BAD_CALLS = [
    (["replay", "no-such.log", "--policy", SHOP], 1, "no-such.log: No such file or directory"),
    (["replay", SHOP, "--policy", "no-such.yaml"], 1, "no-such.yaml: No such file or directory"),
    (["replay", SHOP, "--policy", SHOP, "--field", "when=x"], 2, "NAME is one of time, date, client"),
    (
        ["replay", SHOP, "--policy", SHOP, "--format", "common", "--header", "X=nope"],
        1,
        "the common format has the fields",
    ),
    (["replay", SHOP, "--policy", SHOP, "--timezone", "Mars/Base"], 2, "no time zone is named 'Mars/Base'"),
    (["replay", SHOP, "--policy", SHOP, "--from", "10:00"], 2, "write 2015-09-02T10:00:00"),
    (["replay", SHOP, "--policy", SHOP, "--to", "2015-09-31"], 2, "write 2015-09-02T10:00:00"),
    (["replay", SHOP, "--policy", SHOP, "--from", "2015-09-02", "--to", "2015-09-02"], 2, "--from comes before --to"),
    (["replay", SHOP, "--policy", SHOP, "--date", "1995"], 2, "write 1995-08-29, or 1995-08"),
    (["replay", "-", "-", "--policy", SHOP], 2, "standard input can be read once"),
    (["replay", "-", "--policy", "-"], 2, "standard input can be read once"),
    (["replay", "x.log", "--policy", "-", "--compare", "-"], 2, "standard input can be read once"),
    (["replay", "/", "--policy", SHOP], 1, "/: Is a directory"),
    (["replay", "--policy", SHOP], 2, "Missing argument"),
    (["replay", SHOP], 2, "Missing option '--policy'"),
    (["explain", SHOP, "--entry", "nonsense"], 2, "an entry is written KEY=VALUE, not 'nonsense'"),
    (["explain", SHOP, "--entry", "=7"], 2, "an entry is written KEY=VALUE, not '=7'"),
    (["explain", SHOP, "--entry", "user=7", "--path", "/"], 2, "--entry is of a descriptor, which has no --path"),
    (["explain", SHOP, "--entry", "user=7", "--ip", "::1"], 2, "its address is --entry remote_address=::1"),
    (["explain", SHOP, "--header", "nonsense"], 2, "a header is written NAME:VALUE"),
    (["explain", SHOP, "--header", "X Y:1"], 2, "'X Y' is no name of a header"),
    (["explain", SHOP, "--header", "X:\x01"], 2, "the value of the header X holds a control character"),
    (["explain", SHOP, "--ip", "999.1.1.1"], 2, "'999.1.1.1' is no address"),
    (["explain", SHOP, "--ip", "10.0.0.0/8"], 2, "'10.0.0.0/8' is no address"),
    (["explain", SHOP, "--method", "G T"], 2, "'G T' is no method"),
    (["explain", SHOP, "--path", "api"], 2, "'api' is no path"),
    (["explain", SHOP, "--path", "https://h/api"], 2, "'https://h/api' is no path"),
    (["explain", SHOP, "--host", "https://h"], 2, "'https://h' is no host"),
    (["capacity", SHOP, "--users", "5", "--rate", "nan"], 2, "'nan' is no number"),
    (["serve", SHOP, "--drain", "nan"], 2, "'nan' is no number"),
    (["serve", "no-such.yaml"], 1, "no-such.yaml: No such file or directory"),
    (["serve", "5/minute"], 2, "'5/minute' is no file and reads as limits. A policy file has limits in rules:"),
    (["serve", "5/minute"], 2, "  rules:\n    - {name: all, by: [ip], limits: 5/minute}"),
    (["validate", "10 per \x1b[31m"], 2, "  rules:\n    - {name: all, by: [ip], limits: 100/minute}"),
    (["replay", "access.log", "--policy", "20 concurrent"], 2, "Invalid value for '--policy': '20 concurrent' is no"),
    (["serve", "2026/policy.yaml"], 1, "2026/policy.yaml: No such file or directory"),
    (["inspect", SHOP, "ip=1.2.3.4", "--store", "memory://"], 1, "a memory store is in the process that asks it"),
    (["zone", "info", "/no/such/zone"], 1, "/no/such/zone" if core.CORE == "native" else "native core"),
    (["validate", "no-such.yaml"], 1, "no-such.yaml: No such file or directory"),
    (["validate", "/"], 1, "Is a directory"),
    (["validate", "/proc/self/mem"], 1, "/proc/self/mem: Input/output error"),
    (["llm", "replay", SHOP, "/proc/self/mem", "--model", "m"], 1, "/proc/self/mem: Input/output error"),
    (["frobnicate"], 2, "No such command"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_CALLS, ids=[message for _, _, message in BAD_CALLS])
def test_what_goes_wrong_is_a_message_and_an_exit_code(arguments: list[str], code: int, message: str) -> None:
    result = run_headgate(*arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


# Root may read any file, unless it gives that right up.
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "{file}", SHOP],
        ["serve", "{file}"],
        ["explain", "{file}"],
        ["llm", "serve", SHOP, "--providers", "{file}", "--no-keys"],
        ["llm", "replay", SHOP, "{file}", "--model", "m"],
        ["llm", "replay", SHOP, "no-such.csv", "--model", "m"],
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_read_is_a_failure_and_no_misuse(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("version: 1\n")
    file.chmod(0)
    command = [*(UNPRIVILEGED if os.geteuid() == 0 else ()), sys.executable, "-m", "headgate"]
    command += [argument.format(file=file) for argument in arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stderr in (
        f"headgate: {file}: Permission denied\n",
        "headgate: no-such.csv: No such file or directory\n",
    )
    assert ("no problems" in result.stdout) == (arguments[0] == "validate")


@pytest.mark.parametrize(
    "arguments", ["replay {log} --policy {shop} --json", "replay {log} --policy {shop}", "schema", "validate {shop}"]
)
def test_a_reader_that_goes_away_is_an_exit_status_and_no_message(log: Path, arguments: str) -> None:
    command = arguments.format(log=log, shop=SHOP)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as gone:
        done = subprocess.run(
            [sys.executable, "-m", "headgate", *command.split()],
            stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 141
    assert not [line for line in done.stderr.splitlines() if "line" not in line and "access.log:13" not in line]


def test_ctrl_c_is_an_exit_status_and_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "policy.yaml"
    os.mkfifo(fifo)  # the command waits to read it
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "validate", str(fifo)], stderr=subprocess.PIPE, text=True
    )
    with fifo.open("w"):  # opens once the command reads
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "headgate: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_copy_of_a_log_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "replay", "-", "--policy", SHOP],
        stdin=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdin is not None
    with process.stdin as log:
        log.write(LINE.format(1).encode() * 100_000)  # more than a pipe holds: the command copies it
        log.flush()
        assert list(tmp_path.iterdir())
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert not list(tmp_path.iterdir())


def test_only_a_replay_of_standard_input_needs_a_temporary_folder(log: Path) -> None:
    program = "import runpy, tempfile; tempfile.tempdir = '/nowhere'; runpy.run_module('headgate', run_name='__main__')"
    for name, code, printed in ((str(log), 0, "12 requests"), ("-", 1, "/nowhere/headgate-replay-")):
        done = subprocess.run(
            [sys.executable, "-c", program, "replay", name, "--policy", SHOP],
            input=log.read_text(), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, printed in done.stdout + done.stderr) == (code, True), done.stderr


def test_a_replay_under_nohup_ignores_sighup(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "headgate", "replay", "-", "--policy", SHOP],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write((LINE.format(1) + "\n").encode() * 100_000)  # more than a pipe holds: the command copies it
    process.stdin.flush()
    process.send_signal(signal.SIGHUP)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"100,000 requests" in printed


@pytest.mark.parametrize("arguments", ["--help", "--version", "replay --help", "info", "replay {log} --policy {shop}"])
def test_a_full_disk_is_a_message(log: Path, arguments: str) -> None:
    command = arguments.format(log=log, shop=SHOP).split()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headgate", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("headgate: standard output: No space left on device\n")
    assert "Traceback" not in done.stderr


def test_an_option_of_very_many_digits_is_reported_briefly() -> None:
    for options in (["--rate", "1", "--users", "9" * 5000], ["--users", "1", "--rate", "9" * 400]):
        result = run_headgate("capacity", SHOP, *options)
        digits = len(options[-1])
        assert (result.returncode, result.stderr.splitlines()[-1]) == (
            2, f"Error: Invalid value for '{options[2]}': 99999999999999999999... is {digits} characters long, "
            "which no number here may be",
        )  # fmt: skip


def test_a_report_that_cannot_be_written_is_named_and_results_are_printed(log: Path) -> None:
    result = run_headgate("replay", str(log), "--policy", SHOP, "--json", "--report", "/dev/full")
    assert (result.returncode, json.loads(result.stdout)["requests"]) == (1, 12)
    assert result.stderr.endswith("headgate: /dev/full: No space left on device\n")


def test_a_folder_is_no_report_and_no_time_zone(log: Path, tmp_path: Path) -> None:
    result = run_headgate("replay", str(log), "--policy", SHOP, "--report", str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{tmp_path} is a directory: name a file in it" in result.stderr
    for zone in ("Europe", "x" * 5000):
        result = run_headgate("replay", str(log), "--policy", SHOP, "--timezone", zone)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"no time zone is named {zone[:60]!r}" in result.stderr


def test_a_log_that_fails_while_it_is_read_is_named() -> None:
    result = run_headgate("replay", "/proc/self/mem", "--policy", SHOP)
    assert (result.returncode, result.stderr) == (1, "headgate: /proc/self/mem: Input/output error\n")


def test_messages_hold_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    log = tmp_path / "a\x07.csv"
    log.write_text("a\x07\x9b31mb,c\n1,2\n")
    budget = str(Path(SHOP).with_name("llm-budget.yaml"))
    for command in (
        ["replay", str(log), "--policy", SHOP, "--format", "csv"],
        ["llm", "replay", budget, str(log), "--model", "gpt-5"],
        ["replay", str(tmp_path / "none\x07"), "--policy", SHOP],
    ):
        result = run_headgate(*command)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("headgate: ") and result.stderr[:-1].isprintable()


def test_validate_and_explain_show_nothing_of_a_policy_or_a_request_that_a_terminal_obeys(tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    text = "version: 1\nrules: [{name: all, by: [ip], limits: 3/minute, match: {path: /LIKE}}]\n"
    descriptors = str(Path(SHOP).with_name("descriptors.yaml"))
    for like, command in (
        ("a\u202eb{c}", ["validate", str(policy)]),
        ("a\u202eb", ["explain", str(policy), "--path", "/a%E2%80%AEb"]),
        ("a", ["explain", descriptors, "--entry", "a\x1b]0;b\x07=c"]),
    ):
        policy.write_text(text.replace("LIKE", f'"{like}"').replace('/"', '"/'), encoding="utf-8")
        result = run_headgate(*command)
        shown = (result.stdout + result.stderr).replace("\n", "")
        assert "?" in shown and shown.isprintable(), shown


def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time,ip,url\n" + "5,clé→,/\n" * 9, encoding="utf-8")
    policy = tmp_path / "p\udce9.yaml"  # a name that is no UTF-8
    policy.write_text("version: 1\nrules: [{name: all, by: [ip], limits: 3/minute}]\n")
    for encoding, key in (("latin-1", "clé\\u2192"), ("utf-8", "clé→")):
        result = subprocess.run(
            [sys.executable, "-m", "headgate", "replay", str(log), "--policy", str(policy)],
            capture_output=True, check=False, timeout=60, env={**os.environ, "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (0, b"")
        assert f"{key} (6)" in result.stdout.decode(encoding)


@pytest.mark.skipif(core.CORE == "python", reason="the shared store needs the native core")
def test_zone_shows_and_forgets_what_a_shared_zone_holds(tmp_path: Path) -> None:
    zone = str(tmp_path / "zone")
    limiter = Limiter("5/hour counter; 9/day", store=f"shared://{zone}?size=256KiB", name="api")
    for _ in range(6):
        limiter.hit("user:42")
    limiter.hit(("user:42", 7))
    output = run_headgate("zone", "info", zone).stdout
    assert f"{zone}, 262,144 bytes, made " in output
    assert "limiter/api/sliding.1  9/day" in output
    assert "\nclock" not in output
    facts = json.loads(run_headgate("zone", "info", "--json", f"shared://{zone}").stdout)
    assert (facts["size"], facts["keys"], facts["mended"]) == (262_144, 4, 0)
    assert abs(facts["clock_offset_us"]) < 1_000_000
    assert facts["limits"][0] == {"scope": "limiter/api/sliding.0", "limit": "5/hour counter"}

    output = run_headgate("zone", "inspect", "user:42", zone).stdout
    assert re.search(r"5/hour counter: 0 left, all in [0-9.]+ s, its last request was refused\n", output)
    parts = json.loads(run_headgate("zone", "inspect", "--json", "user:42", "7", zone).stdout)
    assert [(state["limit"], state["remaining"]) for state in parts] == [("5/hour counter", 4), ("9/day", 8)]

    assert run_headgate("zone", "reset", "user:42", zone).stdout == "forgot what 'user:42' used\n"
    assert limiter.peek("user:42", 0).remaining == 5
    assert run_headgate("zone", "reset", "user:42", zone).stdout == "nothing was held of 'user:42'\n"
    assert run_headgate("zone", "inspect", "user:42", zone).stdout == "nothing is held of 'user:42'\n"
    assert run_headgate("zone", "clear", zone).stdout == "forgot 2 states\n"
    assert limiter.store.stats().keys == 0


@pytest.mark.skipif(core.CORE == "python", reason="the shared store needs the native core")
@pytest.mark.parametrize(
    ("set_by_s", "told"),
    [
        (11_000, "11,000 s behind the host's time: windows begin that much too late, until the zone is made anew"),
        (-60, "60 s ahead of the host's time: windows begin that much too early, until the zone is made anew"),
    ],
)
def test_zone_tells_that_the_hosts_time_was_set_since_it_was_made(tmp_path: Path, set_by_s: int, told: str) -> None:
    program = (
        "import sys; from headgate import clock; from headgate.cli import main; host_ns = clock._wall_ns; "
        "set_by_ns = int(sys.argv.pop(1)) * 1_000_000_000; clock._wall_ns = lambda: host_ns() + set_by_ns; main()"
    )
    zone = str(tmp_path / "zone")
    store = SharedStore(zone, size=262_144)
    command = [sys.executable, "-c", program, str(set_by_s), "zone", "info", zone]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"\nclock       {told}\n" in result.stdout
    store.close()


def test_zone_says_what_is_wrong(tmp_path: Path) -> None:
    missing = run_headgate("zone", "info", str(tmp_path / "none"))
    assert (missing.returncode, missing.stdout) == (1, "")
    foreign = tmp_path / "foreign"
    foreign.write_text("not a zone")
    foreign.chmod(0o600)
    refused = run_headgate("zone", "clear", str(foreign))
    assert refused.returncode == 1
    if core.CORE == "native":
        assert f"{tmp_path / 'none'}: there is no zone" in missing.stderr
        assert f"{foreign}: is no zone of Headgate" in refused.stderr
    else:
        assert "the shared store needs the native core" in missing.stderr
    assert foreign.read_text() == "not a zone"
    wrong = run_headgate("zone", "info", "redis://user:secret@host/1")
    assert wrong.returncode == 1 and "secret" not in wrong.stderr
    assert "did you mean" not in wrong.stderr


@pytest.mark.parametrize("command", [["info"], ["--help"], ["validate", SHOP], ["explain", SHOP], ["schema"]])
def test_a_command_without_a_standard_output_says_so(command: list[str]) -> None:
    result = in_a_shell('exec "$@" >&-', *command)
    assert (result.returncode, result.stderr) == (1, "headgate: standard output: closed, and the results go there\n")


def test_a_command_that_prints_no_results_needs_no_standard_output(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    assert run_headgate("llm", "key", "create", "ci", "--keys", keys).returncode == 0
    result = in_a_shell('exec "$@" >&-', "llm", "key", "revoke", "ci", "--keys", keys)
    assert (result.returncode, result.stderr) == (0, "headgate: the key ci is revoked\n")


@pytest.mark.parametrize("command", [["validate", "-"], ["replay", "-", "--policy", SHOP]])
def test_a_command_without_a_standard_input_says_so(command: list[str]) -> None:
    result = in_a_shell('exec "$@" <&-', *command)
    assert (result.returncode, result.stderr) == (1, "headgate: standard input: Bad file descriptor\n")


def in_a_shell(script: str, *command: str) -> subprocess.CompletedProcess[str]:
    """What a command tells that a shell starts; `"$@"` is the command in the shell's script."""
    started = ["sh", "-c", script, "sh", sys.executable, "-m", "headgate", *command]
    return subprocess.run(started, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("group", [[], ["llm"], ["llm", "key"], ["zone"]], ids=["headgate", "llm", "llm key", "zone"])
def test_the_help_of_a_group_has_whole_sentences(group: list[str]) -> None:
    result = run_headgate(*group, "--help", COLUMNS="80")
    assert result.returncode == 0 and "Commands:" in result.stdout
    assert "..." not in result.stdout.partition("Commands:")[2]

"""`headgate validate`: errors in policy files, and warnings of likely mistakes, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from headgate.cli.policies import display_name, policy_text
from headgate.cli.terminal import printable
from headgate.errors import ConfigError
from headgate.policy.load import check_policy
from headgate.policy.problems import PolicyError, Problem, path_text, place_text
from headgate.policy.schema import PolicyModel
from headgate.policy.warnings import warnings_of
from headgate.policy.yaml_source import Document, read_document


@dataclass(slots=True)
class _CheckResult:
    """The result for one file. `policy` is None where the file cannot be used."""

    file: str
    policy: PolicyModel | None = None
    problems: Sequence[Problem] = ()
    message: str = ""
    """The problems as text for people."""

    warnings: Sequence[Problem] = field(default_factory=list)


def run_validate(files: Sequence[str], *, as_json: bool) -> bool:
    """Check files and print the results; return whether all of them are valid."""
    checked = [_check(file) for file in files]
    if as_json:
        click.echo(json.dumps([_as_json(one) for one in checked]))
    else:
        for one in checked:
            _print_result(one)
    return all(one.policy is not None for one in checked)


def _check(file: str) -> _CheckResult:
    checked = _CheckResult(display_name(file))
    try:
        document = read_document(policy_text(file), checked.file)
        policy = check_policy(document)
        if problems := [*_price_problems(document, policy), *_zone_problems(document, policy)]:
            raise PolicyError(checked.file, problems)
        checked.warnings = warnings_of(document, policy)
        checked.policy = policy
    except PolicyError as error:
        checked.problems, checked.message = error.problems, str(error)
    except OSError as error:
        checked.problems = [Problem((), error.strerror or str(error))]
    return checked


def _price_problems(document: Document, policy: PolicyModel) -> list[Problem]:
    """Problems of prices that gates of language models would refuse, which loading the policy does not find."""
    prices = {} if policy.llm is None else policy.llm.prices
    if not prices:
        return []
    from headgate.llm.prices import PriceBook

    problems = []
    for name, price in prices.items():
        try:
            PriceBook({name: price})
        except ConfigError as error:
            message = str(error).removeprefix(f"prices.{name}: ")
            problems.append(document.problem(("llm", "prices", name), message))
    return problems


def _zone_problems(document: Document, policy: PolicyModel) -> list[Problem]:
    """Problems of limits that a shared zone cannot decide, where the policy names one."""
    if not policy.store.startswith("shared:"):
        return []
    from headgate.policy.compiler import compile_policy
    from headgate.policy.store_fit import zone_obstacle

    obstacle = zone_obstacle(compile_policy(policy))
    return [document.problem(("store",), obstacle)] if obstacle else []


def _print_result(checked: _CheckResult) -> None:
    for warning in checked.warnings:
        _print(place_text(checked.file, warning, "warning: "), err=True)
    if checked.policy is not None:
        rules = _count_text(len(checked.policy.rules), "rule")
        warnings_text = f", {_count_text(len(checked.warnings), 'warning')}" if checked.warnings else ", no problems"
        _print(f"{checked.file}: {rules} of {checked.policy.namespace}{warnings_text}")
    elif checked.message:
        _print(checked.message, err=True)
        _print(f"headgate: {checked.file}: {_count_text(len(checked.problems), 'problem')}", err=True)
    else:
        _print(f"headgate: {checked.file}: {checked.problems[0].message}", err=True)


def _print(text: str, *, err: bool = False) -> None:
    click.echo(printable(text), err=err)


def _as_json(checked: _CheckResult) -> dict[str, Any]:
    policy = checked.policy
    return {
        "file": checked.file,
        "valid": policy is not None,
        "namespace": None if policy is None else policy.namespace,
        "rules": None if policy is None else len(policy.rules),
        "problems": [_problem(problem) for problem in checked.problems],
        "warnings": [_problem(warning) for warning in checked.warnings],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    """`line` and `column` count from 1, and are 0 where a problem concerns the whole file."""
    return {
        "path": path_text(problem.path),
        "message": problem.message,
        "line": problem.line,
        "column": problem.column,
    }


def _count_text(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"

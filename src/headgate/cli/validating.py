"""`headgate validate`: what is wrong with policy files, and what can hardly be meant, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from headgate.cli.policies import policy_text, shown_name
from headgate.cli.terminal import printable
from headgate.errors import ConfigError
from headgate.policy.load import check_policy
from headgate.policy.problems import PolicyError, Problem, path_text, place_text
from headgate.policy.schema import PolicyModel
from headgate.policy.warnings import warnings_of
from headgate.policy.yaml_source import Document, read_document


@dataclass(slots=True)
class _Checked:
    """What came of one file. `policy` is None where it cannot be used."""

    file: str
    policy: PolicyModel | None = None
    problems: Sequence[Problem] = ()
    message: str = ""
    """The problems as people read them."""

    warnings: Sequence[Problem] = field(default_factory=list)


def run_validate(files: Sequence[str], *, as_json: bool) -> bool:
    """Check files and tell what came of it; whether all of them are good."""
    checked = [_check(file) for file in files]
    if as_json:
        click.echo(json.dumps([_as_json(one) for one in checked]))
    else:
        for one in checked:
            _tell(one)
    return all(one.policy is not None for one in checked)


def _check(file: str) -> _Checked:
    checked = _Checked(shown_name(file))
    try:
        document = read_document(policy_text(file), checked.file)
        policy = check_policy(document)
        if wrong := [*_wrong_prices(document, policy), *_too_much_for_a_zone(document, policy)]:
            raise PolicyError(checked.file, wrong)
        checked.warnings = warnings_of(document, policy)
        checked.policy = policy
    except PolicyError as error:
        checked.problems, checked.message = error.problems, str(error)
    except OSError as error:
        checked.problems = [Problem((), error.strerror or str(error))]
    return checked


def _wrong_prices(document: Document, policy: PolicyModel) -> list[Problem]:
    """What gates of language models would not take of the prices, which the policy alone does not tell."""
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


def _too_much_for_a_zone(document: Document, policy: PolicyModel) -> list[Problem]:
    """What a shared zone, where the policy names one, cannot decide."""
    if not policy.store.startswith("shared:"):
        return []
    from headgate.policy.compiler import compile_policy
    from headgate.policy.store_fit import zone_obstacle

    obstacle = zone_obstacle(compile_policy(policy))
    return [document.problem(("store",), obstacle)] if obstacle else []


def _tell(checked: _Checked) -> None:
    for warning in checked.warnings:
        _say(place_text(checked.file, warning, "warning: "), err=True)
    if checked.policy is not None:
        rules = _counted(len(checked.policy.rules), "rule")
        found = f", {_counted(len(checked.warnings), 'warning')}" if checked.warnings else ", no problems"
        _say(f"{checked.file}: {rules} of {checked.policy.namespace}{found}")
    elif checked.message:
        _say(checked.message, err=True)
        _say(f"headgate: {checked.file}: {_counted(len(checked.problems), 'problem')}", err=True)
    else:
        _say(f"headgate: {checked.file}: {checked.problems[0].message}", err=True)


def _say(text: str, *, err: bool = False) -> None:
    click.echo(printable(text), err=err)


def _as_json(checked: _Checked) -> dict[str, Any]:
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
    """`line` and `column` count from 1, and are 0 where a problem is of the file as a whole."""
    return {
        "path": path_text(problem.path),
        "message": problem.message,
        "line": problem.line,
        "column": problem.column,
    }


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"

"""`help` shows documentation for all public names, on both cores."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import headgate
from headgate import core
from headgate.decision import PythonDecision
from headgate.holding import PythonSettlement
from headgate.reservation import PythonReservation

TWINS = [PythonDecision, PythonReservation, PythonSettlement]


def members(of: type) -> Iterator[str]:
    """The public names that Headgate itself gives a class."""
    for base in of.__mro__:
        if base.__module__.startswith("headgate"):
            yield from (name for name in vars(base) if not name.startswith("_"))


def doc_of(of: type, name: str) -> str | None:
    return inspect.getdoc(inspect.getattr_static(of, name))


@pytest.mark.parametrize("name", headgate.__all__)
def test_every_public_name_and_its_methods_have_a_docstring(name: str) -> None:
    public = getattr(headgate, name)
    assert inspect.getdoc(public)
    if isinstance(public, type):
        attributes = {own: inspect.getattr_static(public, own) for own in members(public)}
        methods = [own for own, value in attributes.items() if inspect.isroutine(value) or isinstance(value, property)]
        assert [own for own in methods if not doc_of(public, own)] == []


@pytest.mark.skipif(core.native is None, reason="there is no native core")
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_the_native_core_documents_as_much_as_the_python_core(twin: type) -> None:
    native = getattr(core.native, twin.__name__)
    assert inspect.getdoc(native) == inspect.getdoc(twin)
    undocumented = [name for name in members(twin) if not doc_of(native, name)]
    assert undocumented == []
    for name in members(twin):
        attribute = inspect.getattr_static(twin, name)
        if inspect.isfunction(attribute) or isinstance(attribute, property):
            assert doc_of(native, name) == inspect.getdoc(attribute), name

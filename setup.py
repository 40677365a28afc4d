"""How the native core is built: along its hot paths, where they are known for this compiler (docs/decisions/0081)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools_rust import Binding, RustExtension

RUST = Path("rust")
PROFILE = RUST / "profile" / "hot-paths.profdata.xz"
COMPILER = RUST / "profile" / "compiler.txt"


def compiler() -> str | None:
    """What the Rust compiler says of itself, or None where there is none."""
    try:
        return subprocess.check_output([os.environ.get("RUSTC", "rustc"), "-vV"], cwd=RUST, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None


def cargo_arguments() -> list[str]:
    """What cargo is told of the profile: nothing to another compiler, which would know none of its functions."""
    if not PROFILE.exists() or compiler() != COMPILER.read_text():
        return []
    try:
        import lzma
    except ImportError:  # a Python that was built where liblzma was missing: a build without the profile is only slower
        return []
    packed = PROFILE.read_bytes()
    # cargo builds anew when a flag changes, not when a file does that it names: the file is named by what is in it.
    unpacked = (RUST / "target" / f"{hashlib.sha256(packed).hexdigest()[:16]}.profdata").absolute()
    if not unpacked.exists():
        unpacked.parent.mkdir(exist_ok=True)
        written = unpacked.with_suffix(f".{os.getpid()}")
        written.write_bytes(lzma.decompress(packed))
        # A build that finds it newer than what is compiled compiles everything anew, as in a copy of the source.
        os.utime(written, ns=(0, 0))
        written.replace(unpacked)
    # Flags that a user gives in RUSTFLAGS take the place of this one.
    return ["--config", f"build.rustflags = [{json.dumps(f'-Cprofile-use={unpacked}')}]"]


setup(
    rust_extensions=[
        RustExtension(
            "headgate._native",
            path=str(RUST / "python" / "Cargo.toml"),
            binding=Binding.PyO3,
            # Where no Rust toolchain is at hand the package installs without it and decides in Python.
            optional=True,
            debug=False,
            args=cargo_arguments(),
        )
    ]
)

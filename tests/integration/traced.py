"""Processes that are traced, and stopped at each change of a memory that they share with this one.

What a process does between two writes to that memory nobody else sees. So its mapping is made read-only in the process:
it runs on at full speed to the next write, whose fault stops it, and the one instruction that writes is stepped. Where
the registers of the processor are not known here, or every instruction is to be seen, it is stepped from one
instruction to the next, which takes a hundred times as long.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
TRACEME, CONTINUE, SINGLESTEP, GET_REGISTERS, SET_REGISTERS, DETACH, GET_SIGNAL = 0, 7, 9, 12, 13, 17, 0x4202
KNOWS_REGISTERS = platform.machine() == "x86_64"

Registers = ctypes.c_uint64 * 27
RAX, RDX, RSI, RDI, ORIGINAL_RAX, RIP = 10, 12, 13, 14, 15, 16
"""Places in `user_regs_struct` of <sys/user.h>."""
MPROTECT = 10
"""The number of the system call."""


class Traced:
    """A process that is stepped from one instruction to the next."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def step(self) -> bool:
        """One step on; False where the process has ended by itself."""
        return self._go(SINGLESTEP) == signal.SIGTRAP

    def let_go(self, sig: int) -> None:
        """The process goes on by itself, with a signal."""
        self._trace(DETACH, None, sig)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _go(self, how: int) -> int | None:
        """The signal that stops the process next, which it does not get, or None where it has ended."""
        self._trace(how, None, None)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return None
        assert os.WIFSTOPPED(status), status
        return os.WSTOPSIG(status)

    def _trace(self, request: int, address: object, data: object) -> None:
        if libc.ptrace(request, self.pid, address, data) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")


class Guarded(Traced):
    """A process that is stepped to the moment before its next write to a file's memory, and from there over the write.

    What it leaves when it is killed at one of these steps is what it would leave at any instruction in between.
    """

    def __init__(self, pid: int, mappings: list[range]) -> None:
        super().__init__(pid)
        self._mappings = mappings
        self._registers = Registers()
        self._before_write = False
        self._protect(mmap.PROT_READ)

    def step(self) -> bool:
        if self._before_write:
            self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
            assert self._go(SINGLESTEP) == signal.SIGTRAP
            self._protect(mmap.PROT_READ)
            self._before_write = False
            return True
        if self._go(CONTINUE) is None:
            return False
        told = (ctypes.c_uint64 * 16)()  # siginfo_t: the signal, and from the third word on the address of a fault
        self._trace(GET_SIGNAL, None, told)
        assert told[0] & 0xFFFF_FFFF == signal.SIGSEGV and any(told[2] in each for each in self._mappings), list(told)
        self._before_write = True
        return True

    def let_go(self, sig: int) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        super().let_go(sig)

    def kill(self) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)  # the kernel writes into the locks of a dead process
        super().kill()

    def _protect(self, protection: int) -> None:
        """Have the process call mprotect, between two of its own instructions."""
        self._trace(GET_REGISTERS, None, self._registers)
        for mapping in self._mappings:
            call = Registers(*self._registers)
            call[RIP], call[RAX], call[ORIGINAL_RAX] = SYSCALL, MPROTECT, 2**64 - 1
            call[RDI], call[RSI], call[RDX] = mapping.start, len(mapping), protection
            self._trace(SET_REGISTERS, None, call)
            assert self._go(SINGLESTEP) == signal.SIGTRAP
            self._trace(GET_REGISTERS, None, call)
            assert call[RAX] == 0, "mprotect"
        self._trace(SET_REGISTERS, None, self._registers)


def _find_syscall() -> int:
    """The address of an instruction that calls the kernel, in this process and in those that it forks."""
    address = ctypes.cast(libc.syscall, ctypes.c_void_p).value
    assert address is not None
    return address + ctypes.string_at(address, 64).index(b"\x0f\x05")


SYSCALL = _find_syscall() if KNOWS_REGISTERS else 0


def trace(operate: Callable[[], object], file: Path, *, every_instruction: bool = False) -> Traced:
    """A process that stands where `operate` first stopped itself, and ends with it; `file` is what is looked at."""
    pid = os.fork()
    if pid == 0:
        libc.ptrace(TRACEME, 0, None, None)
        operate()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status)
    return Traced(pid) if every_instruction or not KNOWS_REGISTERS else Guarded(pid, mappings_of(file))


def mappings_of(file: Path) -> list[range]:
    """Where a file is mapped, in this process and in those that it forks; it may be removed since."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split()[0].split("-") for line in lines if str(file) in line]
    assert places
    return [range(int(start, 16), int(end, 16)) for start, end in places]

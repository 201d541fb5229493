"""The seccomp filter, interpreted as the kernel does, on both machines that it is written for."""

from __future__ import annotations

import errno
import struct

import pytest

from scope_jax.environments.isolation import filters


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the filter returns for a system call."""
    known, _ = filters.ARCHITECTURES[machine]
    data = struct.pack("<IIQ6Q", number, known if audit is None else audit, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("HBBI", filters.program(machine)))
    place = accumulator = 0
    while True:
        operation, yes, no, value = lines[place]
        place += 1
        if operation == filters.RETURN:
            return value
        if operation == filters.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        holds = {
            filters.EQUAL: accumulator == value,
            filters.AT_LEAST: accumulator >= value,
            filters.ANY_BIT: bool(accumulator & value),
        }[operation]
        place += yes if holds else no


def refused(number: int) -> int:
    return filters.ERRNO | number


@pytest.mark.parametrize("machine", filters.ARCHITECTURES)
def test_every_call_gets_its_verdict(machine: str) -> None:
    _, column = filters.ARCHITECTURES[machine]
    special = {numbers[column] for numbers in (filters.CLONE, filters.CLONE3, filters.SOCKET, filters.IOCTL)}
    no = {numbers[column] for numbers in filters.REFUSED.values()}
    for number in range(600):
        if number not in special:
            assert verdict(machine, number) == (refused(errno.EPERM) if number in no else filters.ALLOW), number
    assert len(no) == len(filters.REFUSED) and not no & special


@pytest.mark.parametrize("machine", filters.ARCHITECTURES)
def test_arguments_decide_where_they_must(machine: str) -> None:
    _, column = filters.ARCHITECTURES[machine]
    clone, clone3, socket, ioctl = (
        numbers[column] for numbers in (filters.CLONE, filters.CLONE3, filters.SOCKET, filters.IOCTL)
    )
    threads, child = 0x3D0F00, 0x01200011  # of the C library's pthread_create and fork
    assert verdict(machine, clone, threads) == verdict(machine, clone, child) == filters.ALLOW
    assert verdict(machine, clone, child | 0x10000000) == verdict(machine, clone, 0x20000) == refused(errno.EPERM)
    assert verdict(machine, clone3) == refused(errno.ENOSYS)
    families = [family for family in range(64) if verdict(machine, socket, family) == filters.ALLOW]
    assert families == [1, 2, 10] and verdict(machine, socket, 40) == refused(errno.EAFNOSUPPORT)
    assert verdict(machine, ioctl, 0, 0x5412) == verdict(machine, ioctl, 1, 0x541C) == refused(errno.EPERM)
    assert verdict(machine, ioctl, 0, 0x5401) == filters.ALLOW


def test_calls_of_other_architectures_end_the_process() -> None:
    assert verdict("x86_64", 0, audit=0x40000003) == verdict("x86_64", 0x40000001) == filters.KILL
    assert verdict("aarch64", 0, audit=0x40000028) == filters.KILL

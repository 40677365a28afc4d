"""Refusals of a Redis or Valkey, as errors of Headgate that tell the next step."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis import exceptions
from redis._parsers.socket import SERVER_CLOSED_CONNECTION_ERROR

from headgate.errors import StoreError, StoreKeyError, StoreTimeout, StoreUnavailable
from headgate.stores.redis.tls_files import TlsFileError

E = TypeVar("E", bound=BaseException)
CommandT = TypeVar("CommandT")

_TEMPORARY = {
    "OOM": "its memory is full: raise maxmemory, or give the limiter a server of its own",
    "READONLY": "this server is a replica: name the primary, or use redis+sentinel:// or redis+cluster://",
    "LOADING": "it is loading its data",
    "BUSY": "a script of another client keeps it busy",
    "MASTERDOWN": "its primary is away",
    "CLUSTERDOWN": "the Cluster has no primary for this key",
    "TRYAGAIN": "the key's slot is moving to another server",
    "MISCONF": "it cannot save its data and refuses writes",
    "NOREPLICAS": "it has too few replicas and refuses writes",
    "MAXCLIENTS": "it has too many clients",
}
"""Refusals that end by themselves or after an operator has acted. None of them has charged anything."""

_PERMANENT = {
    "WRONGTYPE": "a key of this name holds a value of another program: choose another prefix, or delete the key",
    "NOSTATE": "a key of this name holds a value that is not the state of a limit, since another program wrote it or it"
    " was damaged: reset the key, or choose another prefix",
    "NOPERM": "the user may not do this: it needs ~PREFIX:* for its keys, and +evalsha +eval +time +hget"
    " +hmget +hset +hdel +lrange +ttl +expireat +unlink; to hold also +get +set +setrange +hincrby"
    " +zadd +zcount +zrange +zrangebyscore +zrem; to wait in line also +hgetall +exists +zcard +zscore +sadd +srem"
    " +smembers +pexpire +publish +subscribe +unsubscribe and &headgate:turn:*; to clear the store also +scan",
    "NOAUTH": "it requires a password: add it to the store's URL",
    "WRONGPASS": "the user or the password is wrong",
    "CROSSSLOT": "it is a Cluster: use redis+cluster://",
    "MOVED": "it is a Cluster: use redis+cluster://",
    "NOCLUSTER": "it is no Cluster: use redis:// or redis+sentinel://",
}


_SENTINEL_RIGHTS = "the user at the Sentinels may not ask them for the primary: it needs +sentinel|masters"


def store_error(error: Exception, shown: str) -> StoreError:
    """The error of a call; `shown` names the server."""
    if isinstance(error, StoreError):
        return error
    converted = _converted(error, shown)
    converted.was_sent = converted.was_sent and getattr(error, "was_sent", True)
    return converted


def mark_unsent(error: E) -> E:
    """Mark an error that prevented a call from being sent, for `store_error`."""
    error.was_sent = False  # type: ignore[attr-defined]
    return error


def _converted(error: Exception, shown: str) -> StoreError:
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        if str(error) == NO_CONNECTION:
            return no_connection_error(shown)
        return StoreTimeout(f"{shown}: no answer in time; the call may have been charged")
    if isinstance(error, exceptions.InvalidResponse) or not isinstance(error, _EXPECTED_ERRORS):
        return StoreUnavailable(f"{shown}: it sent an invalid reply ({type(error).__name__})")
    text = str(error)
    if type(error).__name__ == "MasterNotFoundError" and _ASKS_FOR_PASSWORD.search(text):
        return StoreUnavailable(f"{shown}: cannot be reached: {_sentinel_reason(text)}")
    code = next(
        (found for phrase, found in _CODES_BY_PHRASE.items() if phrase in text), text.partition(" ")[0].rstrip(":")
    )
    if isinstance(error, exceptions.AuthenticationError):
        code = code if code in _PERMANENT else "WRONGPASS"
    if code not in _TEMPORARY and code not in _PERMANENT:
        code = next((found for found in (*_PERMANENT, *_TEMPORARY) if f"{found} " in text), code)
    code_of_class = _CODES_BY_CLASS.get(type(error).__name__, "")
    code = code if code in _TEMPORARY or code in _PERMANENT else code_of_class
    if code in _TEMPORARY:
        return mark_unsent(StoreUnavailable(f"{shown}: {_TEMPORARY[code]} ({code})"))  # sent, but not executed
    if code in ("WRONGTYPE", "NOSTATE"):
        return StoreKeyError(f"{shown}: {_PERMANENT[code]} ({code})")
    if code in _PERMANENT:
        denied = _DENIED_COMMAND.search(text) if code == "NOPERM" else None
        if denied is not None and denied[1].startswith("sentinel"):
            return StoreError(f"{shown}: {_SENTINEL_RIGHTS} (NOPERM)")
        detail = "" if denied is None else f"; the denied command is {denied[1]}"
        return StoreError(f"{shown}: {_PERMANENT[code]} ({code}{detail})")
    if (unknown := _UNKNOWN_COMMAND.search(text)) is not None:  # the rest of the text shows the key
        return StoreError(
            f"{shown}: it has no command {unknown[1] or 'that a script calls'}: {_UNKNOWN_COMMAND_REASONS}"
        )
    if isinstance(error, exceptions.ResponseError):
        return StoreError(f"{shown}: refused: {text[:200]}")
    return StoreUnavailable(f"{shown}: cannot be reached: {_reason(error)}")


def without_frames(error: BaseException) -> BaseException:
    """An error, without the frames of its traceback, that is to be stored.

    The frames of an error and its causes refer to the object that stores it: with them, the error would keep an unused
    store and its connections alive until garbage is collected.
    """
    current: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if current is not None:
            current.__traceback__ = None
            current = current.__cause__ or current.__context__
    return error


def reply_or_raise(reply: Any) -> Any:
    """Return a reply, or raise it where it is an error."""
    if isinstance(reply, Exception):
        try:
            raise reply
        finally:
            del reply  # see `without_frames`
    return reply


def execute_one_by_one(
    execute: Callable[[bytes | None, CommandT], Any], requests: Sequence[tuple[bytes | None, CommandT]]
) -> list[Any]:
    """Execute commands, each with its key, one by one; return their replies, with errors among them.

    An error that concerns neither one command nor one server of a Cluster takes the place of all further replies.
    """
    replies: list[Any] = []
    for key, command in requests:
        try:
            replies.append(execute(key, command))
        except Exception as error:
            replies.append(without_frames(error))
            is_of_one_server = isinstance(error, StoreError) and error.server
            if not (is_of_one_server or isinstance(error, exceptions.ResponseError)):
                return replies + replies[-1:] * (len(requests) - len(replies))
    return replies


def no_connection_error(shown: str) -> StoreTimeout:
    """The error of a call that was never sent because there was no connection."""
    over = " over TLS" if shown.startswith("rediss") else ""
    return mark_unsent(StoreTimeout(f"{shown}: no answer in time to a connection{over}; nothing was charged"))


NO_CONNECTION = "Timeout connecting to server"
"""The message of redis-py where a connection, over TLS including the handshake, is not ready in time."""

NO_PRIMARY = (exceptions.ReadOnlyError, exceptions.MasterDownError)
"""Refusals by a replica. It may have been the primary when the connection was opened: the address of a managed Redis,
of a proxy or of a Service leads to another server after a failover, and open connections stay where they were."""

_EXPECTED_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError, EOFError)
"""Errors that redis-py raises on purpose, and those of the network."""

_CODES_BY_CLASS = {
    "OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY", "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN", "ClusterDownError": "CLUSTERDOWN", "TryAgainError": "TRYAGAIN",
    "NoPermissionError": "NOPERM", "AuthenticationError": "WRONGPASS", "MaxClientsError": "MAXCLIENTS",
    "MovedError": "MOVED", "AskError": "MOVED",
}  # fmt: skip
"""The codes of errors whose text redis-py strips of its code."""

_DENIED_COMMAND = re.compile(r"permissions to run the '([A-Za-z|-]{1,40})' command", re.IGNORECASE)
_UNKNOWN_COMMAND = re.compile(r"unknown (?:redis )?command(?:,? [`'\"]([A-Za-z|]{1,30})[`'\"])?", re.IGNORECASE)
_UNKNOWN_COMMAND_REASONS = (
    "it was renamed or disabled there, or this is a Sentinel (redis+sentinel://) or no Redis at all"
)

_MOST_CAUSES = 8

_ASKS_FOR_PASSWORD = re.compile("NOAUTH|AuthenticationError|Authentication required")

_CODES_BY_PHRASE = {
    "Authentication required": "NOAUTH",
    "max number of clients": "MAXCLIENTS",
    "cluster support disabled": "NOCLUSTER",
    "The user executing the script can't": "NOPERM",  # a command, or a key, that the script uses
    "ACL failure in script": "NOPERM",
    # Errors of scripts at a value that they have not written:
    "data string too short": "NOSTATE",
    "attempt to ": "NOSTATE",
    "bad argument #": "NOSTATE",
    "ommand arguments must be strings or integers": "NOSTATE",  # "Command" in Valkey 9.1
    "value is not an integer or out of range": "NOSTATE",
    "invalid expire time": "NOSTATE",
    "not a valid float": "NOSTATE",
    "min or max is not a float": "NOSTATE",
    "hash value is not an integer": "NOSTATE",
    "offset is out of range": "NOSTATE",
    "too many results to unpack": "NOSTATE",
}
"""The codes of errors whose text is more precise than their class."""


def _reason(error: Exception) -> str:
    """Why a server cannot be reached, without repeating its address and without any password.

    redis-py describes it in a text and keeps the system's error as the cause; asyncio has only the error number in a
    text where a name has several addresses.
    """
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if isinstance(cause, TlsFileError):
            return str(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, OSError):
            if isinstance(cause, ssl.SSLError | socket.gaierror) and cause.strerror:
                return cause.strerror
            if cause.errno is not None:
                return os.strerror(cause.errno)
            if (errno_text := re.search(r"\[Errno ([0-9]{1,3})\]", str(cause))) is not None:
                return os.strerror(int(errno_text[1]))
        cause = None if cause is None else cause.__cause__ or cause.__context__
    if str(error).startswith(SERVER_CLOSED_CONNECTION_ERROR):
        return "it closes the connection"
    return _sentinel_reason(str(error)) if type(error).__name__ == "MasterNotFoundError" else type(error).__name__


def _sentinel_reason(text: str) -> str:
    """The same for Sentinels: redis-py puts the classes of their errors into one text."""
    if _ASKS_FOR_PASSWORD.search(text):
        return (
            "a Sentinel requires another user or password: the URL's options sentinel_username and sentinel_password"
            " are for Sentinels, its user and password for servers"
        )
    return "no Sentinel that answers knows a primary of that name"

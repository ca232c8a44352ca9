"""Errors of the API as one line for the user."""

from __future__ import annotations

import json
from pathlib import Path

from evenshard.utils.errors import BadConfig, EvenshardError, PipelineFailed
from evenshard.utils.messages import cut, one_line, reason_of

_MAX_REASON = 300  # characters of the server's own words
_BUSY = (429, 502, 503)


class ServerTrouble(PipelineFailed):
    """An answer of a server that has failed."""


class Busy(ServerTrouble):
    """An answer of a server, or of a proxy before it, that has not begun with the call."""


class TokenRefused(BadConfig):
    """An answer of a server that does not accept the token, or cannot ask Kubernetes whose it is."""


def error_of(error: Exception, what: str, url: str, namespace: str, token_file: Path | None) -> EvenshardError:
    """Return the exception to raise for an error of the SDK.

    Args:
        what: subject of the call, such as "run 1234".
    """
    from kfp_server_api import ApiException
    from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

    if isinstance(error, ApiException):
        return _of_answer(error.status or 0, _server_message(error), what, url, namespace, token_file)
    wrapped = getattr(error, "reason", None) or error  # urllib3 wraps what happened
    if isinstance(wrapped, NewConnectionError):
        said = str(wrapped).rsplit(": ", 1)[-1]
        return PipelineFailed(f"{url} cannot be reached ({said}). Check --endpoint and the way there.")
    if isinstance(wrapped, TimeoutError):
        hint = "" if what.startswith("run ") else " It may have been done: look before you try again."
        return PipelineFailed(f"{what}: {url} did not answer in time.{hint}")
    if isinstance(wrapped, HTTPError | OSError):
        return PipelineFailed(f"{what}: {url} broke off ({reason_of(wrapped)}).")
    return BadConfig(
        f"{what}: {url} answers, but not as Kubeflow Pipelines does ({reason_of(error)}). A login page? Name the "
        f"address of the API, and a token with --token-file."
    )


def _of_answer(status: int, said: str, what: str, url: str, namespace: str, token_file: Path | None) -> EvenshardError:
    if status == 0:
        return PipelineFailed(f"{what}: no secure connection to {url}: {said}.")
    if status in _BUSY or status >= 500:
        trouble = Busy if status in _BUSY else ServerTrouble
        return trouble(f"{what}: {url} is in trouble ({status}): {said}. Try again later.")
    whose = f"the token in {token_file}" if token_file else "a call without a token"
    if status == 401:
        return TokenRefused(
            f"{url} does not accept {whose} (401): {said}. Get a new token and name its file with --token-file."
        )
    happened, remedy = {
        403: (f"not allowed in namespace {namespace}", "Ask for the right, or name another one."),
        404: (f"not found at {url}", "Check the id, or whether --endpoint is the API's address."),
    }.get(status, (f"{url} refuses it", "Correct what it names."))
    return BadConfig(f"{what}: {happened} ({status}): {said}. {remedy}")


def _server_message(error: Exception) -> str:
    """Return the server's own words, which the API puts under "message", "error" or "error_message"."""
    body = getattr(error, "body", None) or getattr(error, "reason", None) or ""
    try:
        content = json.loads(body)
        words = content.get("message") or content.get("error") or content.get("error_message") or body
    except (ValueError, AttributeError):
        words = body
    text = one_line(words.decode(errors="replace") if isinstance(words, bytes) else str(words))
    return cut(text, _MAX_REASON).rstrip(".") or "no reason given"

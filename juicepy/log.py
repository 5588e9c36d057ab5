"""Set-up of logging: lines as JuiceFS prints them, on stderr or in a file, never with a secret.

2026/11/30 18:15:19.366366 jfs[7738] <INFO>: text [module@file.py:12]
"""

from __future__ import annotations

import datetime
import logging
import os
import re
import sys
import threading

from juicepy import urls

# user:password@ in whatever URL a driver puts into a message
_LOGIN = re.compile(r"([a-z0-9+]+://[^\s:/@'\"]*):[^\s'\"]*@")


class Redactor(logging.Filter):
    """Replaces known secrets, and passwords within URLs, in every record that passes."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: tuple[str, ...] = ()

    def hide(self, *secrets: str) -> None:
        """Never print these from now on. Very short ones would blot out ordinary text."""
        longer = {secret for secret in secrets if len(secret) > 2}
        self._secrets = tuple(sorted({*self._secrets, *longer}, key=len, reverse=True))

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, urls.HIDDEN)
        return _LOGIN.sub(rf"\1:{urls.HIDDEN}@", text)

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        cleaned = self.clean(text)
        if cleaned != text:
            record.msg, record.args = cleaned, ()
        return True


redactor = Redactor()


class Formatter(logging.Formatter):
    """One line per record, a traceback below it where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created).strftime("%Y/%m/%d %H:%M:%S.%f")
        line = (
            f"{when} jfs[{os.getpid()}] <{record.levelname}>: {record.getMessage()} "
            f"[{record.funcName}@{record.filename}:{record.lineno}]"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redactor.clean(line)


def setup(
    verbose: bool = False, log_path: str | None = None, *, quiet: bool = False, trace: bool = False
) -> None:
    """Send logs to stderr, or append them to `log_path`. Raises OSError if it cannot be written.

    INFO and above; `verbose` adds DEBUG of this program, `trace` also of the libraries, `quiet`
    leaves WARNING and above. What a thread dies of is an ERROR with its traceback.
    """
    handler: logging.Handler
    if log_path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.FileHandler(log_path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(Formatter())
    handler.addFilter(redactor)
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, Formatter)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if trace else logging.WARNING)
    level = logging.WARNING if quiet else logging.DEBUG if verbose or trace else logging.INFO
    logging.getLogger("juicepy").setLevel(level)
    threading.excepthook = _log_thread_death


def _log_thread_death(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread else "?"
    logging.getLogger(__name__).error(
        "thread %s died", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
    )

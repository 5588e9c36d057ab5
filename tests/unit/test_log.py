"""Logs: their form, their levels, and that no secret is in them."""

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from juicepy import log


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, threading.excepthook)
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, threading.excepthook = before[0], before[2]
    root.setLevel(before[1])
    logging.getLogger("juicepy").setLevel(logging.NOTSET)


def test_line_has_time_process_level_and_place(tmp_path: Path) -> None:
    log.setup(log_path=str(tmp_path / "x.log"))
    logging.getLogger("juicepy.x").info("volume %s is ready", "vol")
    text = (tmp_path / "x.log").read_text()
    pattern = (
        r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} jfs\[\d+\] <INFO>: volume vol is ready \[.*\]\n"
    )
    assert re.fullmatch(pattern, text)


def test_levels(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for options, seen in (
        ({}, "IW"),
        ({"verbose": True}, "DIW"),
        ({"quiet": True}, "W"),
        ({"trace": True}, "DIWL"),
    ):
        path.write_text("")
        log.setup(log_path=str(path), **options)
        logger = logging.getLogger("juicepy.y")
        logger.debug("D!")
        logger.info("I!")
        logger.warning("W!")
        logging.getLogger("library").debug("L!")
        assert "".join(re.findall(r": (\w)! ", path.read_text())) == seen


def test_secrets_and_passwords_in_urls_are_hidden(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log.setup(log_path=str(path))
    log.redactor.hide("topsecret")
    logger = logging.getLogger("juicepy.z")
    logger.warning("key is %s", "topsecret")
    logger.warning("cannot reach %s", "redis://:p@ss/w@host:1/2")
    try:
        raise ValueError("topsecret in a traceback")
    except ValueError:
        logger.exception("failed")
    text = path.read_text()
    assert "topsecret" not in text
    assert "p@ss" not in text
    assert "redis://:****@host:1/2" in text


def test_death_of_a_thread_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log.setup(log_path=str(path))

    def die() -> None:
        raise RuntimeError("oh")

    thread = threading.Thread(target=die, name="worker-7")
    thread.start()
    thread.join(10)
    assert "<ERROR>: thread worker-7 died" in path.read_text()
    assert "RuntimeError: oh" in path.read_text()


def test_unwritable_log_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        log.setup(log_path=str(tmp_path / "no" / "x.log"))

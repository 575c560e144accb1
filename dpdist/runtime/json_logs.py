"""Logs of a scheduler and of workers as JSON lines on standard error."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

LOGGERS = ("distributed", "tornado", "asyncio", "bokeh")


class JsonLines(logging.Formatter):
    """time, level, logger, message; of an exception its type alone, for its words may quote a record."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            said["exception"] = record.exc_info[0].__name__
        return json.dumps(said)


def log_as_json() -> None:
    """Replace the handlers of Dask's loggers in this process."""
    import distributed  # noqa: F401 - sets its own handlers when it is imported

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in [*LOGGERS, *(name for name in logging.root.manager.loggerDict if name.startswith("distributed."))]:
        logger = logging.getLogger(name)
        if logger.handlers or name in LOGGERS:
            logger.handlers = [handler] if name in LOGGERS else []
        if name in LOGGERS:
            logger.propagate = False

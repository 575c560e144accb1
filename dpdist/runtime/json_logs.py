"""For `runtime.services` and workers: writes logs to standard error as lines of JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

TASKS = "dpdist.tasks"
"""Logger of the begin and end of a worker's tasks, with the stage's name and strata's numbers. Silent by default."""
LOGGERS = ("distributed", "tornado", "asyncio", "bokeh", TASKS)


class JsonLines(logging.Formatter):
    """Formats a log record as JSON: time, level, logger, message, facts.

    Of an exception it gives the type alone, because the message may quote a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        line |= getattr(record, "facts", {})
        return json.dumps(line)


def log_as_json() -> None:
    """Replaces the handlers of Dask's loggers in this process by one that writes JSON."""
    import distributed  # noqa: F401 - sets its own handlers when it is imported

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    below = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in LOGGERS]
    for name in [*LOGGERS, *below]:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = ([handler], False) if name in LOGGERS else ([], True)
    logging.getLogger(TASKS).setLevel(logging.INFO)


def note(event: str, unit: Mapping[str, int | str], **more: object) -> None:
    """Logs one line about a task.
    Nothing is logged under the proper prior, because the records decide which strata need it.
    """
    if unit.get("fit") != "proper":
        logging.getLogger(TASKS).info("%s", event, extra={"facts": {"event": event, **unit, **more}})


def noting() -> bool:
    return logging.getLogger(TASKS).isEnabledFor(logging.INFO)

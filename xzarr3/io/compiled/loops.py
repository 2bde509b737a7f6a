"""What the executor uses of compiled code once it is loaded."""

from xzarr3.io.compiled import read_batch, write_batch
from xzarr3.io.compiled.read_batch import CompiledRead, missing, read_value
from xzarr3.io.compiled.write_batch import CompiledWrite

__all__ = ("CompiledRead", "CompiledWrite", "compile_all", "missing", "read_value")


def compile_all() -> None:
    """Compile the loops, or load their machine code from the disk."""
    read_batch.compile_all()
    write_batch.compile_all()

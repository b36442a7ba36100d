"""Builds a graph of ONNX operations: each operation is a call that returns the name of its result."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

OPSET = 20  # Gelu
FLOAT, INT32 = 1, 6  # TensorProto.FLOAT, TensorProto.INT32: targets of Cast
Shape = Sequence[int | str]  # a name is a dynamic length


class Graph:
    """Nodes in order of creation; a weight that is used twice is stored once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._known: dict[int, tuple[Tensor, str]] = {}  # keeps weights alive, so that ids stay unique
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: type, shape: Shape) -> str:
        """Add an input."""
        self._inputs.append(_described(name, kind, shape))
        return name

    def output(self, value: str, name: str, kind: type, shape: Shape) -> None:
        """Add an output."""
        self._add("Identity", [value], [name])
        self._outputs.append(_described(name, kind, shape))

    def weight(self, tensor: Tensor) -> str:
        """Add a tensor of the model and return its name."""
        if id(tensor) not in self._known:
            array = tensor.detach().float().cpu().contiguous().numpy()
            self._known[id(tensor)] = tensor, self.constant(array)
        return self._known[id(tensor)][1]

    def constant(self, value: Any) -> str:
        """Add a number or array; integers become int64, others float32."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32) if array.dtype != bool else array
        name = f"c{len(self._constants)}"
        self._constants[name] = array
        return name

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operation with one output."""
        return self.several(kind, *inputs, count=1, **attributes)[0]

    def several(self, kind: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Add an operation with several outputs."""
        names = [f"t{len(self._nodes)}_{place}" for place in range(count)]
        self._add(kind, list(inputs), names, **attributes)
        return names

    def size(self, value: str, axis: int) -> str:
        """Return the length of an axis, as a scalar."""
        return self("Squeeze", self("Shape", value, start=axis, end=axis + 1))

    def counted(self, begin: str, end: str) -> str:
        """Return begin, begin + 1 .. end - 1."""
        return self("Range", begin, end, self.constant(1))

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Add axes of length one."""
        return self("Unsqueeze", value, self.constant(list(axes)))

    def reshape(self, value: str, *shape: int) -> str:
        """Reshape: 0 keeps an axis, -1 infers one."""
        return self("Reshape", value, self.constant(list(shape)))

    def parts(self, value: str, *widths: int) -> list[str]:
        """Split along the last axis."""
        return self.several("Split", value, self.constant(list(widths)), count=len(widths), axis=-1)

    def model(self) -> Any:
        """Return the finished graph, checked by the `onnx` package."""
        from onnx import checker, helper, numpy_helper

        constants = [numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, constants)
        version = helper.make_opsetid("", OPSET)
        oldest = helper.find_min_ir_version_for([version])  # for older runtimes
        model = helper.make_model(graph, opset_imports=[version], ir_version=oldest, producer_name="allyouneed")
        checker.check_model(model, full_check=True)
        return model

    def _add(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, outputs, **attributes))


def _described(name: str, kind: type, shape: Shape) -> Any:
    from onnx import TensorProto, helper

    types = {float: TensorProto.FLOAT, int: TensorProto.INT64, bool: TensorProto.BOOL}
    return helper.make_tensor_value_info(name, types[kind], list(shape))
